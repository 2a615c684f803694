"""Asking an environment, which may be wrong for once, or away for a while."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from ratchet.spec.faults import DataFault, InfraFault, RatchetError
from ratchet.spec.run_spec import EnvironmentSpec

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

DATA_TRIES = 3
"""Times a problem is asked for, or a response is scored, before the prompt counts as one that cannot be."""
AWAY_TRIES = 5
"""Times the environment may be away, one after the other, before whoever asks fails."""
BACK_OFF_S, LONGEST_BACK_OFF_S = 0.5, 30.0

AGAIN = (DataFault, InfraFault, OSError, TimeoutError)
"""What is asked again after. Anything else is a defect of the environment."""


@dataclass(slots=True)
class Asked:
    """Over the life of whoever asks."""

    wrong: int = 0
    """Times an answer was asked for again after a DataFault."""
    away: int = 0
    """The same, since the environment was away."""


class Asking:
    """One answer, asked for until it comes. Raises the DataFault that it meets DATA_TRIES times, InfraFault
    once the environment was away AWAY_TRIES times, and at once what is neither."""

    def __init__(self, spec: EnvironmentSpec, what: str, asked: Asked | None = None) -> None:
        """`what`: is asked for, in words."""
        self._spec, self._what, self._asked = spec, what, asked or Asked()
        self._wrong = self._away = 0

    def until(self, ask: Callable[[], Answer]) -> Answer:
        """Of what blocks; `ask` bounds its own time."""
        while True:
            try:
                return ask()
            except AGAIN as error:
                time.sleep(self._failed(error))

    async def answered(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Of what is awaited, `environment.timeout_s` at most each time."""
        while True:
            try:
                async with asyncio.timeout(self._spec.timeout_s):
                    return await ask()
            except AGAIN as error:
                await asyncio.sleep(self._failed(error))

    def _failed(self, error: Exception) -> float:
        """Seconds to wait before asking again."""
        if isinstance(error, DataFault):
            self._wrong += 1
            if self._wrong == DATA_TRIES:
                raise error
            self._asked.wrong += 1
            _log.info("%s: asked again: %s", self._what, error)
            return 0.0
        self._away += 1
        if self._away == AWAY_TRIES:
            self._give_up(error)
        self._asked.away += 1
        back_off = BACK_OFF_S * 2 ** (self._away - 1)
        return min(LONGEST_BACK_OFF_S, back_off) * random.uniform(0.5, 1.0)

    def _give_up(self, error: Exception) -> NoReturn:
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, RatchetError):
            told = str(error)
        elif isinstance(error, TimeoutError) and not str(error):
            told = f"no answer within {self._spec.timeout_s:g} s (environment.timeout_s)"
        raise InfraFault(
            f"environment {self._spec.name} gave no {self._what} in {AWAY_TRIES} tries: {told}",
            role="environment",
        ) from error
