"""Follows every run that has sinks: finds news in the outbox, and takes them to each sink at its own pace.

One task a sink of a run. A sink that fails is tried again, later and later; it holds nobody up, since each
kind has threads of its own and each sink its own position.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from ratchet.sinks.follow import Follow
from ratchet.sinks.reading import Source
from ratchet.sinks.registry import Named, sinks_of
from ratchet.spec.faults import Conflict, RatchetError, Unavailable
from ratchet.spec.home import Home
from ratchet.store import SinkPositions, Store
from ratchet.telemetry.logs import about

logger = logging.getLogger(__name__)

LOOK_EVERY = 1.0
KEEP_EVERY = 30.0
LONGEST_PAUSE = 60.0
NOTICES_AT_ONCE = 10_000
"""Whose runs are looked up in one go: a store may be old when it is followed for the first time."""
LONGEST_TEXT = 500
_THREADS = {"tensorboard": 2, "mlflow": 1, "wandb": 1, "webhook": 4}
"""By kind. MLflow and W&B keep settings in the process, so that two at once would meet."""

T = TypeVar("T")
Key = tuple[str, str]
"""Run, and name of the sink."""


@dataclass(eq=False)
class _Running:
    follow: Follow
    kind: str
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is decided whether there is news, or the end."""
    task: asyncio.Task[None] | None = None


class Follower:
    """`run` until cancelled, then `rest`. A killed one goes on from its positions in the store."""

    def __init__(self, store: Store, home: Home, *, first_pause: float = 1.0) -> None:
        """`first_pause`: seconds after the first failure of a sink, doubled after each further one."""
        self._source, self._positions = Source(store), SinkPositions(store)
        self._home = home
        self._first_pause = first_pause
        self._threads = {kind: ThreadPoolExecutor(count, kind) for kind, count in _THREADS.items()}
        self._running: dict[Key, _Running] = {}
        self._sinks: dict[str, list[Named]] = {}
        """Of every run that was told of. A run keeps the sinks that it was launched with."""
        self._looked = 0
        """Every run with notices up to this id is known."""
        self._kept_at = time.monotonic()
        self._written: Counter[str] = Counter()
        self._given_up: Counter[str] = Counter()
        """Of sinks that have ended."""
        self.failures: Counter[str] = Counter()
        """Attempts that failed, by kind of sink."""

    def behind(self) -> dict[Key, int]:
        """How many notices, of any run, came after the last one that each sink has seen."""
        return {key: max(0, self._looked - each.follow.after) for key, each in list(self._running.items())}

    def written(self) -> Counter[str]:
        """Points and messages that were taken, by kind of sink."""
        total = self._written.copy()
        for each in list(self._running.values()):
            total[each.kind] += each.follow.written
        return total

    def given_up(self) -> Counter[str]:
        """Messages that were not taken, and never will be, by kind of sink."""
        total = self._given_up.copy()
        for each in list(self._running.values()):
            total[each.kind] += each.follow.given_up
        return total

    async def run(self) -> None:
        while not await self._recalled():
            await asyncio.sleep(LOOK_EVERY)
        while True:
            try:
                await self._look()
            except Unavailable as error:
                logger.warning("cannot look for news: %s", error)
            await asyncio.sleep(LOOK_EVERY)

    async def _recalled(self) -> bool:
        """Go on with what one before this one had not come to the end of; False if the store is away."""
        try:
            self._looked = await asyncio.to_thread(self._positions.looked)
            for run in await asyncio.to_thread(self._positions.unfinished):
                await self._wake(run)
        except Unavailable as error:
            logger.warning("cannot look for sinks: %s", error)
            return False
        return True

    async def rest(self) -> None:
        """Let every sink go, where it is."""
        tasks = [each.task for each in self._running.values() if each.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._running.values():
            try:
                await self._in_thread(each, each.follow.pause)
            except Exception as error:
                logger.warning("%s of %s was not closed: %s", each.follow.name, each.follow.run, error)
        with suppress(RatchetError):
            await asyncio.to_thread(self._positions.keep_looked, self._looked)
        for pool in self._threads.values():
            pool.shutdown(wait=False, cancel_futures=True)

    # --- which runs

    async def _look(self) -> None:
        newest = await asyncio.to_thread(self._source.newest)
        while self._looked < newest:
            upto = min(newest, self._looked + NOTICES_AT_ONCE)
            for run in await asyncio.to_thread(self._source.runs_told_of, self._looked, upto):
                await self._wake(run)
            # Whoever has sinks has positions by now, and is not forgotten if this process is killed. To know
            # where it had looked only saves the next one time, and is not worth a write every second.
            self._looked = upto
            if time.monotonic() - self._kept_at > KEEP_EVERY:
                await asyncio.to_thread(self._positions.keep_looked, upto)
                self._kept_at = time.monotonic()

    async def _wake(self, run: str) -> None:
        if run not in self._sinks:
            self._sinks[run] = await asyncio.to_thread(self._sinks_of, run)
        for named in self._sinks[run]:
            key = (run, named.name)
            if (running := self._running.get(key)) is not None:
                async with running.ending:
                    running.news.set()
            if key not in self._running:  # it may have ended just now
                await self._begin(key, named)

    def _sinks_of(self, run: str) -> list[Named]:
        record = self._source.run(run)
        try:
            return sinks_of(record, self._home) if record else []
        except ValueError as error:  # pydantic's: a spec that this version does not understand
            logger.error("the sinks of run %s cannot be read: %s", run, type(error).__name__)
            return []

    async def _begin(self, key: Key, named: Named) -> None:
        run, name = key
        follow = Follow(run, name, self._positions, self._source, named.make)
        await asyncio.to_thread(follow.begin)
        running = self._running[key] = _Running(follow, named.kind)
        running.task = asyncio.create_task(self._follow(key, running), name=f"{name} of {run}")

    # --- one sink

    async def _follow(self, key: Key, running: _Running) -> None:
        follow, pause = running.follow, self._first_pause
        with about(follow.run):
            while True:
                running.news.clear()
                try:
                    while await self._in_thread(running, follow.advance):
                        pause = self._first_pause
                    if await self._over(key, running):
                        return
                except Exception as error:
                    self.failures[running.kind] += 1
                    _complain(follow, error, pause)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    await running.news.wait()

    async def _over(self, key: Key, running: _Running) -> bool:
        """Whether the run has ended, and the sink with it. A run that is resumed is followed again."""
        record = await asyncio.to_thread(self._source.run, key[0])
        if record is not None and not record.phase.final:
            return False
        async with running.ending:
            if running.news.is_set():
                return False
            if record is None:  # it was forgotten, and its positions with it
                with suppress(Conflict):
                    await self._in_thread(running, running.follow.pause)
            # The run may have come to its end, and told more, after the last look for news.
            elif await self._in_thread(running, running.follow.advance) or not await self._in_thread(
                running, running.follow.end
            ):
                running.news.set()
                return False
            del self._running[key]
        self._written[running.kind] += running.follow.written
        self._given_up[running.kind] += running.follow.given_up
        return True

    async def _in_thread(self, running: _Running, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads[running.kind], work)


def _complain(follow: Follow, error: Exception, pause: float) -> None:
    known = isinstance(error, (RatchetError, OSError))
    text = str(error) if isinstance(error, RatchetError) else f"{type(error).__name__}: {error}"
    logger.warning(
        "%s of %s is behind, and tried again in %.0f s: %s",
        follow.name,
        follow.run,
        pause,
        " ".join(text.split())[:LONGEST_TEXT],
        exc_info=None if known else error,
    )
