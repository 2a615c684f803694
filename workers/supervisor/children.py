"""One supervised process: started, watched, killed when it falls silent, started again when it ends."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.telemetry.logs import readable
from workers.liveness import ALIVE_VARIABLE
from workers.supervisor.net import eventually
from workers.supervisor.processes import signal_group, signal_to
from workers.supervisor.reaper import Reaper, Watched
from workers.supervisor.rotation import rotate

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
EARLY_DEATHS = 5
"""A child that ends this often without ever having been ready cannot run here."""
WATCH_EVERY = 1.0
LONGEST_LOOK = 4.0
"""One look at a child never counts as more silence than this, however long it took."""
TAIL_BYTES = 2000


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    """Ended; the next start is due."""
    HELD = "held"
    """Not started before something it needs is back."""
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Plan:
    """How to run a child."""

    name: str
    argv: Sequence[str]
    environment: dict[str, str]
    log: Path
    is_ready: Callable[[int, float], Awaitable[bool]]
    """Asked with its pid and the time of its start, until it says yes. OSError means no."""
    ready_within: float
    alive_file: Path | None = None
    """Touched by the child every second (workers.liveness)."""
    answers: Callable[[], Awaitable[bool]] | None = None
    """For a child that cannot touch a file: whether it answers a question, asked with a deadline."""
    before_start: Callable[[], None] = lambda: None
    keep: Sequence[int] = ()
    """Descriptors the child inherits."""


class Child:
    """Runs a plan until stopped."""

    def __init__(self, plan: Plan, reaper: Reaper, changed: Callable[[], None]) -> None:
        self.plan = plan
        self.phase = Phase.STOPPED
        self.starts = 0
        self.last_end: str | None = None
        """How and when it ended last, for people."""
        self._reaper = reaper
        self._changed = changed
        self._process: Watched | None = None
        self._killed_for: str | None = None
        self._log_start = 0
        self._ready = asyncio.Event()
        self._failure: str | None = None
        self._allowed, self._held = asyncio.Event(), asyncio.Event()
        self._allowed.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.alive else None

    # --- orders

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"child {self.plan.name}")

    async def ready(self, within: float) -> None:
        """Wait until it is ready. Raises Unavailable, with the end of its log, if it does not get there."""
        try:
            await asyncio.wait_for(self._ready.wait(), within)
        except TimeoutError:
            raise Unavailable(self._complaint(f"was not ready within {within:.0f} s")) from None
        if self._failure:
            raise Unavailable(self._failure)

    async def replace(self) -> None:
        """Kill it; another one is started at once. Returns when the old one is gone."""
        self._ready.clear()
        if self._task is None or self._task.done():
            self._failure = None
            self.start()
        elif self._process and self._process.alive:
            self._kill(self._process, "was replaced on request")
            await asyncio.wait([self._process.ended], timeout=deadlines.STOP_GRACE)
            self._ready.clear()

    def hold(self) -> None:
        """Kill it, and start no other before `release`."""
        self._allowed.clear()
        self._held.set()
        self._ready.clear()
        if self._process and self._process.alive:
            self._kill(self._process, "was killed with what it needs")

    def release(self) -> None:
        """Start it, if it was held: at once, however often it had failed before."""
        self._held.clear()
        self._allowed.set()

    async def stop(self, grace: float = deadlines.STOP_GRACE) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds. What it left in its process group dies with it."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._process and self._process.alive:  # else its number may be another's by now
            signal_to(self._process.pid, signal.SIGTERM)
            await asyncio.wait([self._process.ended], timeout=grace)
            if self._process.alive:
                logger.warning("%s did not stop within %.0f s: killed", self.plan.name, grace)
            signal_group(self._process.pid, signal.SIGKILL)
        self._enter(Phase.STOPPED)

    # --- its life

    async def _run(self) -> None:
        was_ever_ready, early_deaths, pause = False, 0, FIRST_PAUSE
        while True:
            if not self._allowed.is_set():
                self._enter(Phase.HELD)
                await self._allowed.wait()
                pause = FIRST_PAUSE
            try:
                was_ready = await self._live()
            except OSError as error:
                logger.error("%s cannot be started: %s", self.plan.name, error)
                was_ready = False
            if was_ready:
                was_ever_ready, pause = True, FIRST_PAUSE
            elif self._allowed.is_set():  # else it was killed by `hold`, which is not its fault
                early_deaths += 1
            if not was_ever_ready and early_deaths >= EARLY_DEATHS:
                return self._fail(f"ended {EARLY_DEATHS} times before it was ready")
            self._enter(Phase.WAITING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for would swallow a cancellation now and then
                    await self._held.wait()
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _live(self) -> bool:
        """One life: whether it was ready before it ended."""
        process = self._launch()
        watch = asyncio.create_task(self._watch(process), name=f"watch {self.plan.name}")
        try:
            code = await asyncio.shield(process.ended)
        finally:
            watch.cancel()
        was_ready = self.phase is Phase.READY
        self._ready.clear()
        signal_group(process.pid, signal.SIGKILL)
        self.last_end = at_this_moment(self._killed_for or f"ended with {code}")
        logger.warning("%s (pid %d) ended with %d", self.plan.name, process.pid, code)
        return was_ready

    def _launch(self) -> Watched:
        plan = self.plan
        self._ready.clear()
        plan.before_start()
        environment = dict(plan.environment)
        if plan.alive_file:
            plan.alive_file.unlink(missing_ok=True)
            environment[ALIVE_VARIABLE] = str(plan.alive_file)
        plan.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(plan.log)
        with plan.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = self._reaper.start(plan.argv, environment=environment, output=log, keep=plan.keep)
        self.starts += 1
        self._killed_for = None
        self._enter(Phase.STARTING)
        return self._process

    async def _watch(self, process: Watched) -> None:
        began = time.time()
        try:
            await eventually(
                lambda: self._says_ready(process.pid, began), self.plan.ready_within, "it is not ready"
            )
        except Unavailable:
            self._kill(process, f"was not ready within {self.plan.ready_within:.0f} s")
            return
        self._enter(Phase.READY)
        self._ready.set()
        logger.info("%s is ready (pid %d, %.1f s)", self.plan.name, process.pid, time.time() - began)
        await self._until_silent()
        self._kill(process, f"was silent for {deadlines.CHILD_SILENT:.0f} s")

    def _kill(self, process: Watched, why: str) -> None:
        self._killed_for = why
        logger.warning("%s (pid %d) %s: killed", self.plan.name, process.pid, why)
        signal_group(process.pid, signal.SIGKILL)

    async def _says_ready(self, pid: int, began: float) -> bool:
        with contextlib.suppress(OSError):
            return await self.plan.is_ready(pid, began)
        return False

    async def _until_silent(self) -> None:
        """Adds up its own looks, not clock time: a machine that slept must not look like a silent child."""
        silent, last, looked = 0.0, self._last_beat(), time.monotonic()
        while silent < deadlines.CHILD_SILENT:
            await asyncio.sleep(WATCH_EVERY)
            now = self._last_beat()
            if self.plan.answers:
                alive = await self.plan.answers()
            else:
                alive = now is None or now != last  # None: it has never beaten
            before, looked = looked, time.monotonic()
            silent, last = (0.0 if alive else silent + min(looked - before, LONGEST_LOOK)), now

    def _last_beat(self) -> int | None:
        with contextlib.suppress(OSError):
            return self.plan.alive_file.stat().st_mtime_ns if self.plan.alive_file else None
        return None

    def _fail(self, what: str) -> None:
        self._failure = self._complaint(what)
        logger.error("%s", self._failure)
        self._enter(Phase.FAILED)
        self._ready.set()

    def _complaint(self, what: str) -> str:
        """One line: what happened, the last words of its log, and where the rest is."""
        text = ""
        with contextlib.suppress(OSError), self.plan.log.open("rb") as log:
            end = log.seek(0, 2)
            began = self._log_start if self._log_start <= end else 0  # it was rotated
            log.seek(max(began, end - TAIL_BYTES))
            text = log.read().decode(errors="replace")
        lines = [line.strip() for raw in text.splitlines() for line in readable(raw).splitlines()]
        last = " / ".join([line for line in lines if line][-3:]) or "it said nothing"
        return f"{self.plan.name} {what}: {last} (log: {self.plan.log})"

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._changed()


def at_this_moment(what: str) -> str:
    """An event and when it was, for people who look later, perhaps another day."""
    return f"{what} at {time.strftime('%Y-%m-%d %H:%M:%S')}"
