"""A Ray cluster that somebody else runs: used, watched, never started, stopped or replaced."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from workers.supervisor.children import WATCH_EVERY, at_this_moment
from workers.supervisor.ray_probe import RayIdentity

logger = logging.getLogger(__name__)

LISTENS_EVERY = 0.2
"""Seconds. No cluster takes another's place faster than Python imports Ray, so none does so unseen."""


class Door(Protocol):
    """A way into a cluster: from its own host, or through its Jobs API."""

    name: str
    """What the user called it by."""
    is_here: bool
    """Whether its drivers run on this host."""
    command: Callable[..., Sequence[str]]
    """(name, module, *words): what to execute here for `python -m module words` to run where it is."""

    async def listens(self) -> bool:
        """Whether anything is there at all: cheap, asked several times a second."""
        ...

    async def session(self) -> str | None:
        """The name of this life of the cluster; None if it does not answer, or has no living node."""
        ...

    async def identify(self) -> RayIdentity:
        """Raises Unavailable if nobody answers, SpecError if we cannot work there."""
        ...


class ExistingRay:
    """`lost` is called when it is gone, `back` when it, or another one at the same address, answers."""

    def __init__(
        self, door: Door, *, changed: Callable[[], None], lost: Callable[[], None], back: Callable[[], None]
    ) -> None:
        self.name = door.name
        self.address: str | None = None
        """HOST:PORT of its GCS, as its own processes know it."""
        self.up = False
        self.last_end: str | None = None
        """When it was away last, for people."""
        self.is_here, self.command = door.is_here, door.command
        self._door = door
        self._changed, self._lost, self._back = changed, lost, back
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Use it from now on. Raises Unavailable if nobody answers, SpecError if we cannot work there."""
        identity = await self._door.identify()
        self.address, self.up = identity.address, True
        self._task = asyncio.create_task(self._watch(identity.session), name="existing ray")

    async def answers(self) -> bool:
        """Whether it answers and has a living node."""
        return await self._door.session() is not None

    async def ensure(self) -> None:
        """Raises Unavailable if it does not answer: to replace it is its owner's business."""
        if not await self.answers():
            raise Unavailable(f"the Ray cluster at {self.name} does not answer")

    async def stop(self, _grace: float = 0.0) -> None:
        """Look at it no longer. It goes on."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self, session: str) -> None:
        """Drivers of a cluster that is gone are killed: they would hang, or meet another one that knows
        nothing of theirs. A GCS that comes back in time with what it knew costs nothing."""
        while True:
            await asyncio.sleep(LISTENS_EVERY)
            if await self._door.listens():
                continue
            gone = time.monotonic()
            self.last_end = at_this_moment("did not listen")
            while (now := await self._door.session()) is None:
                if self.up and time.monotonic() - gone > deadlines.CHILD_SILENT:
                    logger.error("the Ray cluster at %s is away", self.name)
                    self._enter(up=False)
                await asyncio.sleep(WATCH_EVERY)
            if now != session:
                if self.up:
                    self._enter(up=False)
                session = await self._known_again()
            self.last_end += f", came back after {time.monotonic() - gone:.0f} s"
            logger.warning("the Ray cluster at %s %s", self.name, self.last_end)
            if not self.up:
                self._enter(up=True)

    async def _known_again(self) -> str:
        """The session of the new cluster at this address, and its GCS's address, which may be another."""
        while True:
            try:
                identity = await self._door.identify()
            except Exception as error:  # whatever keeps us from working there may be mended
                logger.error("the new Ray cluster at %s cannot be used: %s", self.name, error)
                await asyncio.sleep(WATCH_EVERY)
                continue
            self.address = identity.address
            return identity.session

    def _enter(self, *, up: bool) -> None:
        self.up = up
        self._changed()  # before workers start, who read the address from it
        (self._back if up else self._lost)()
