"""A generator that many wait for at once, and whose weights change meanwhile."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ratchet.generation.protocol import Completion, Generator, SamplingParams
from ratchet.rollouts.group import Tokens
from ratchet.sessions.losses import WeightsMissing
from ratchet.spec.faults import Cancelled
from ratchet.spec.ids import WeightVersion

Result = TypeVar("Result")

MAX_ROWS = 256
"""Of one call."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a call gave. All of it is of one version: weights change between calls only."""

    completions: list[Completion]
    version: WeightVersion
    engine_s: float
    """Its share of the call, by its rows."""


@dataclass(slots=True, eq=False)
class _Request:
    prompts: Sequence[Tokens]
    seeds: Sequence[int]
    params: SamplingParams
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Answered] = field(init=False)

    def __post_init__(self) -> None:
        self.answer = self.loop.create_future()


class LiveEngine:
    """One thread makes all calls of the generator, and does what must not meet one: refits, evaluations.

    What is asked for while it is busy is answered together in the next call, unless `alone`: a row's tokens
    do not depend on its neighbours if it has none.
    """

    def __init__(self, generator: Generator, *, alone: bool) -> None:
        self._generator = generator
        self._alone = alone
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="live-engine")
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._interrupted = threading.Event()
        self._version: WeightVersion | None = None
        self.samples_generated = 0

    @property
    def version(self) -> WeightVersion | None:
        """The weights of the next call; None: it has none, and answers nothing."""
        return self._version

    async def generate(
        self, prompts: Sequence[Tokens], seeds: Sequence[int], params: SamplingParams
    ) -> Answered:
        """A completion for each prompt. Raises WeightsMissing, and what the generator raises. Cancelled
        while it waits, it is not asked any more."""
        request = _Request(prompts, seeds, params, asyncio.get_running_loop())
        with self._lock:
            self._waiting.append(request)
        self._thread.submit(self._answer_some)
        return await request.answer

    async def between_calls(self, work: Callable[[], Result]) -> Result:
        """Do it in the engine's thread: no call is under way, and none begins."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def switch(self, load: Callable[[], WeightVersion], *, cut_short: bool) -> WeightVersion:
        """Take other weights. `cut_short`: the call that is under way is made again under them, from its
        beginning, rather than waited for."""

        def switched() -> WeightVersion:
            self._interrupted.clear()
            try:
                version = self._version = load()
            except BaseException:
                self._version = None  # never half of one
                raise
            return version

        if cut_short:
            self._interrupted.set()
        try:
            return await self.between_calls(switched)
        finally:
            self._thread.submit(self._answer_some)  # what was cut short waits again

    def forget_weights(self) -> None:
        """It has been opened anew."""
        self._version = None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _answer_some(self) -> None:
        """In the thread: one call, for as many as fit into it."""
        with self._lock:
            requests = self._next()
        if not requests:
            return  # a call before this one answered them
        version, began = self._version, time.monotonic()
        try:
            if version is None:
                raise WeightsMissing("the generator holds no weights: refit", role="generator")
            completions = self._generator.generate(
                [prompt for request in requests for prompt in request.prompts],
                [seed for request in requests for seed in request.seeds],
                requests[0].params,
                self._interrupted.is_set,
            )
        except Cancelled:  # by nothing but a switch that comes next
            with self._lock:
                self._waiting[:0] = requests
            return
        except BaseException as error:
            for request in requests:
                _settle(request, error)
            self._thread.submit(self._answer_some)
            return
        self._thread.submit(self._answer_some)  # for what did not fit in
        self.samples_generated += len(completions)
        of_a_row = (time.monotonic() - began) / max(1, len(completions))
        for request in requests:
            count = len(request.prompts)
            _settle(request, Answered(completions[:count], version, count * of_a_row))
            completions = completions[count:]

    def _next(self) -> list[_Request]:
        self._waiting = [request for request in self._waiting if not request.answer.done()]
        taken: list[_Request] = []
        rows = 0
        for request in self._waiting:
            fits = rows + len(request.prompts) <= MAX_ROWS and not self._alone
            if taken and not (fits and request.params == taken[0].params):
                break
            taken.append(request)
            rows += len(request.prompts)
        self._waiting = self._waiting[len(taken) :]
        return taken


def _settle(request: _Request, outcome: Answered | BaseException) -> None:
    def settle() -> None:
        if request.answer.done():  # cancelled
            return
        if isinstance(outcome, Answered):
            request.answer.set_result(outcome)
        else:
            request.answer.set_exception(outcome)

    request.loop.call_soon_threadsafe(settle)
