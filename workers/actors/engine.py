"""An engine's actor as the conductor sees it: made, called over lines, watched, ended and made again."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import ray

from ratchet.refit.segments import segment_prefix, sweep
from ratchet.spec import deadlines
from ratchet.spec.faults import ActorLost, RatchetError
from ratchet.spec.home import Home
from ratchet.telemetry import tracing
from workers.actors.base import SessionConfig, actor_id, note_actor
from workers.actors.lines import Line
from workers.actors.making import found_or_made, kill

logger = logging.getLogger(__name__)

CONTROL = "control"
"""The lane that every engine answers `ping` on, whatever its others are busy with."""


class Lines:
    """Lines of one lane: a call takes one that is free."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._all = tuple(lines)
        self._free: SimpleQueue[Line] = SimpleQueue()
        for line in reversed(self._all):
            self._free.put(line)

    def call(
        self, method: str, *arguments: Any, deadline: float, trace: tracing.Carrier | None = None
    ) -> Any:
        """As of a Line. There are no more callers than lines, so one is free."""
        line = self._free.get()
        try:
            return line.call(method, *arguments, deadline=deadline, trace=trace)
        finally:
            self._free.put(line)

    def cut(self, reason: str) -> None:
        for line in self._all:
            line.cut(reason)


class RemoteEngine:
    """One actor of the session. Its calls raise RatchetErrors: `lost` once the actor is gone."""

    def __init__(
        self,
        config: SessionConfig,
        role: str,
        actor: Any,
        lanes: Mapping[str, int],
        *,
        lost: type[RatchetError] = ActorLost,
    ) -> None:
        """`lanes`: how many calls of each may be under way at once."""
        self.role = role
        self._config = config
        self._class = actor
        self._loss = lost
        self._lanes = dict(lanes)
        self._threads = {
            lane: ThreadPoolExecutor(at_once, thread_name_prefix=lane) for lane, at_once in lanes.items()
        }
        self._lines: dict[str, Lines] = {}
        self._actor: Any = None  # kept: the first handle of a detached actor names it
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the actor or make it, and build what is in it; again: no effect."""
        self.stop_watching()
        self._actor, endpoint = await found_or_made(
            self._class, self._config, self.role, lambda actor: actor.start.remote()
        )
        note_actor(self._config, self.role, actor_id(self._actor), endpoint.pid)
        self._lines = {
            lane: Lines([Line(endpoint, self.role, lane, lost=self._loss) for _ in range(at_once)])
            for lane, at_once in self._lanes.items()
        }
        self._watch = asyncio.create_task(
            self._until_silent(self._actor, self._lines), name=f"watch {self.role}"
        )

    async def call(self, lane: str, method: str, *arguments: Any, deadline: float) -> Any:
        if not self._lines:
            raise self._loss(f"the {self.role} has not been started", role=self.role)
        line, trace = self._lines[lane], tracing.carrier()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads[lane], lambda: line.call(method, *arguments, deadline=deadline, trace=trace)
        )

    async def renew(self) -> None:
        """End the actor, remove what it held, and start an empty one of the same name."""
        await self.end("it is being replaced")
        await self.start()

    async def end(self, reason: str) -> None:
        """Nobody is served by it from here on, be it frozen or only slow."""
        self.stop_watching()
        for line in self._lines.values():
            line.cut(reason)
        await self._end_actor()

    def stop_watching(self) -> None:
        """Leave it alone from here on."""
        if self._watch:
            self._watch.cancel()
            self._watch = None

    async def _end_actor(self) -> None:
        await asyncio.to_thread(kill, self._config, self.role)
        # A killed actor cleans nothing up, and a trainer's segment is as large as its model.
        sweep(segment_prefix(Home(self._config.home), self._config.name(self.role)))

    async def _until_silent(self, actor: Any, lines: dict[str, Lines]) -> None:
        """A frozen process keeps its connections open: only an answer shows that it lives. One that is dead
        has told whoever was calling; to end it once more does no harm."""
        line, silent, loop = lines[CONTROL], 0.0, asyncio.get_running_loop()
        while silent < deadlines.ENGINE_SILENT:
            looked = loop.time()
            await asyncio.sleep(deadlines.ENGINE_PING_EVERY)
            try:
                await asyncio.to_thread(line.call, "ping", deadline=deadlines.ENGINE_PING_EVERY)
                silent = 0.0
            except RatchetError:
                # At most what one look takes: this process may have slept itself.
                silent += min(loop.time() - looked, 3 * deadlines.ENGINE_PING_EVERY)
        logger.error("the %s has been silent for %.0f s: killed", self.role, silent)
        for each in lines.values():
            each.cut(f"it was silent for {silent:.0f} s")
        # By its handle: by now the name may be its successor's.
        await asyncio.to_thread(ray.kill, actor, no_restart=True)
