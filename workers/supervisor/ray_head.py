"""A local Ray head: started, watched, its GCS executed again, all of it replaced when anything else dies.

Its processes: gcs_server and raylet, which become children of the supervisor; below the raylet two agents,
whose death ends the raylet at once, and the workers. A raylet cannot be executed again: it is a new node.
One of the four that is frozen is killed, and then it is a dead one.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from workers.supervisor.children import EARLY_DEATHS, FIRST_PAUSE, LONGEST_PAUSE, Phase, at_this_moment
from workers.supervisor.doors import here, identify
from workers.supervisor.environment import HEAD_VARIABLE, stack_environment
from workers.supervisor.freezing import end_frozen
from workers.supervisor.net import accepts, eventually
from workers.supervisor.ports import RAY_PORTS
from workers.supervisor.processes import Process, end_all, look, of_head, running, signal_to
from workers.supervisor.ray_files import clear_files, clear_segments, make_token
from workers.supervisor.ray_launch import HeadReport, HeadRequest
from workers.supervisor.reaper import Reaper, Watched
from workers.supervisor.recording import Recording
from workers.supervisor.rotation import KEPT, LARGEST_BYTES, rotate

logger = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
OBJECT_STORE_BYTES = 512 << 20
SETTLE = 0.1
"""A GCS that died with everything else is not alone: look again after this."""
GCS_MUST_LIVE = 5.0
"""A GCS that dies again within this is beyond re-execution."""


class RayHead:
    """Runs a head until stopped. `lost` is called as soon as it is gone, `back` when another one is up."""

    def __init__(
        self,
        home: Home,
        first_port: int,
        reaper: Reaper,
        *,
        changed: Callable[[], None],
        lost: Callable[[], None],
        back: Callable[[], None],
    ) -> None:
        self.address = f"{ADDRESS}:{first_port}"
        self.is_here, self.command = True, here
        self.phase = Phase.STOPPED
        self.starts = 0
        self.last_end: str | None = None
        """What became of the head before this one, for people."""
        self.gcs_starts = 0
        self.gcs_last_end: str | None = None
        self.head_id: str | None = None
        self._home = home
        self._first_port = first_port
        self._reaper = reaper
        self._changed, self._lost, self._back = changed, lost, back
        self._environment = stack_environment(home)
        self._storage = home.root / "ray-gcs"
        self.log = home.logs / "ray-head.log"
        self._sessions: set[int] = set()
        self._head_ids: set[str] = set()
        self._gcs: Watched | None = None
        self._recording: Recording | None = None
        self._raylet: Watched | None = None
        self._agents: frozenset[int] = frozenset()
        self._frozen: set[int] = set()
        self._up = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._raylet.pid if self._raylet and self._raylet.alive else None

    @property
    def gcs_pid(self) -> int | None:
        return self._gcs.pid if self._gcs and self._gcs.alive else None

    # --- orders

    async def start(self) -> None:
        """Start it, and keep it from then on. Raises Unavailable, naming the log, if it cannot start."""
        for attempt in range(1, EARLY_DEATHS + 1):
            try:
                await self._start_afresh()
                break
            except Unavailable as error:
                logger.warning("%s", error)
                if attempt == EARLY_DEATHS:
                    raise
        self._task = asyncio.create_task(self._keep(), name="ray head")

    async def ensure(self) -> None:
        """Returns when the head answers, replacing one that is up and twice does not. Raises Unavailable."""
        asked = self.head_id
        silent = self._up.is_set() and not (await self.answers() or await self.answers())
        if silent and self._up.is_set() and self.head_id == asked:  # else it is another one by now
            self._up.clear()
            self._unwanted.set()
        try:
            await asyncio.wait_for(self._up.wait(), deadlines.HEAD_READY)
        except TimeoutError:
            raise Unavailable(f"the Ray head is not up (log: {self.log})") from None

    async def answers(self) -> bool:
        """Whether the head's processes live and its GCS answers and knows a living node."""
        if not self._up.is_set():
            return False
        identity = await identify(self._reaper, self.address, self._environment)
        return identity is not None and identity.nodes > 0

    async def stop(self, grace: float = deadlines.STOP_GRACE) -> None:
        """SIGTERM raylet, then GCS; SIGKILL whatever is left of the head after `grace` seconds."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._up.clear()
        for process in (self._raylet, self._gcs):
            if process and process.alive:
                signal_to(process.pid, signal.SIGTERM)
                await asyncio.wait([process.ended], timeout=grace)
        await end_all(self._processes, deadlines.PROCESSES_GONE)
        shutil.rmtree(self._storage, ignore_errors=True)
        self._enter(Phase.STOPPED)

    # --- its life

    async def _keep(self) -> None:
        while True:
            reason = await self._until_lost()
            logger.error("the Ray head is lost (%s): starting another", reason)
            lost_at, self.last_end = time.monotonic(), at_this_moment(reason)
            self._up.clear()
            self._lost()
            pause = FIRST_PAUSE
            while True:
                try:
                    await self._start_afresh()
                    break
                except (Unavailable, OSError) as error:
                    logger.error("%s; next try in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            self.last_end += f", replaced in {time.monotonic() - lost_at:.1f} s"
            self._back()
            self._changed()

    async def _start_afresh(self) -> None:
        """End every process of earlier heads, delete what they left, start a new one. A head that is started
        while one of the old processes lives may fail, or join the old GCS. Raises Unavailable."""
        self._enter(Phase.STARTING)
        self._unwanted.clear()
        await end_all(self._processes, deadlines.PROCESSES_GONE)
        self._sessions.clear()
        self._head_ids.clear()
        self._frozen.clear()
        clear_files(self._home)
        clear_segments(self._home)
        shutil.rmtree(self._storage, ignore_errors=True)
        self._storage.mkdir(parents=True)
        self._home.ray_temp.mkdir(mode=0o700, parents=True)
        make_token(self._home)

        self.head_id = uuid.uuid4().hex
        self._head_ids.add(self.head_id)
        report = await self._launch(self.head_id)
        self.starts += 1
        self.gcs_starts += 1
        self._gcs, self._raylet = self._reaper.watch(report.gcs_server), self._reaper.watch(report.raylet)
        try:
            self._recording = Recording.of(report.gcs_server)
        except OSError:
            raise Unavailable(
                f"Ray's GCS ended at once (log: {report.session_folder}/logs/gcs_server.out)"
            ) from None
        # It has no other children before the first driver comes.
        self._agents = frozenset(process.pid for process in running() if process.parent == report.raylet)
        self._up.set()
        self._enter(Phase.READY)
        logger.info("ray head is ready at %s (raylet pid %d)", self.address, report.raylet)

    async def _launch(self, head_id: str) -> HeadReport:
        report = self._home.root / "ray-head.json"
        report.unlink(missing_ok=True)
        request = HeadRequest(
            address=ADDRESS,
            first_port=self._first_port,
            last_port=self._first_port + RAY_PORTS - 1,
            temp_folder=str(self._home.ray_temp),
            num_cpus=len(os.sched_getaffinity(0)),
            object_store_bytes=OBJECT_STORE_BYTES,
            report=str(report),
        )
        head_environment = self._environment | {
            HEAD_VARIABLE: head_id,
            "RAY_gcs_storage": "rocksdb",  # survives the GCS, which can therefore be executed again
            "RAY_gcs_storage_path": str(self._storage),
            # Ray rotates the logs of its processes and of actors by itself.
            "RAY_ROTATION_MAX_BYTES": str(LARGEST_BYTES),
            "RAY_ROTATION_BACKUP_COUNT": str(KEPT),
        }
        argv = [sys.executable, "-m", "workers.supervisor.ray_launch", request.model_dump_json()]
        rotate(self.log)
        with self.log.open("ab") as log:
            launcher = self._reaper.start(argv, environment=head_environment, output=log)
            self._sessions.add(launcher.pid)
            await asyncio.wait([launcher.ended], timeout=deadlines.HEAD_READY)
        if not report.exists():
            raise Unavailable(
                f"the Ray head did not start (log: {self.log}; Ray's own: {self._home.ray_temp})"
            )
        return HeadReport.model_validate_json(report.read_text())

    async def _until_lost(self) -> str:
        """Returns why the head has to be replaced. A GCS that died alone is executed again."""
        assert self._gcs
        assert self._raylet
        loop = asyncio.get_running_loop()
        gcs_started = loop.time() - GCS_MUST_LIVE
        unwanted = asyncio.create_task(self._unwanted.wait())
        freezes = asyncio.create_task(end_frozen(self._vital, self._is_frozen))
        try:
            while True:
                await asyncio.wait(
                    [self._gcs.ended, self._raylet.ended, unwanted], return_when=asyncio.FIRST_COMPLETED
                )
                if unwanted.done():
                    return "it did not answer"
                gcs_gone = loop.time()
                await asyncio.wait([self._raylet.ended], timeout=SETTLE)
                if not self._raylet.alive:
                    if frozen := self._frozen & self._agents:
                        return f"an agent of its raylet (pid {min(frozen)}) was frozen"
                    return f"its raylet {self._how_it_ended(self._raylet)}"
                end = at_this_moment(self._how_it_ended(self._gcs))
                if gcs_gone - gcs_started < GCS_MUST_LIVE:
                    return "its GCS ended twice"
                gcs_started = loop.time()
                assert self._recording
                self.gcs_starts += 1
                try:
                    self._gcs = self._recording.play(self._reaper)
                except OSError as error:
                    return f"its GCS {end} and cannot be executed again: {error}"
                try:
                    await eventually(
                        lambda: accepts(ADDRESS, self._first_port),
                        deadlines.GCS_BACK,
                        "its GCS does not listen again",
                    )
                except Unavailable as error:
                    return str(error)
                self.gcs_last_end = f"{end}, executed again in {loop.time() - gcs_gone:.1f} s"
                logger.warning("ray's GCS %s (pid %d)", self.gcs_last_end, self._gcs.pid)
                self._changed()
        finally:
            unwanted.cancel()
            freezes.cancel()

    def _vital(self) -> list[int]:
        """The processes that nothing works without."""
        pids = [process.pid for process in (self._gcs, self._raylet) if process and process.alive]
        # An agent that ended took its raylet along; its number may be another process's by then.
        return pids + [pid for pid in self._agents if (agent := look(pid)) and agent.parent == self.pid]

    def _is_frozen(self, pid: int) -> None:
        logger.error("process %d of the Ray head has been frozen for %.0f s", pid, deadlines.CHILD_SILENT)
        self._frozen.add(pid)

    def _how_it_ended(self, process: Watched) -> str:
        return "was frozen" if process.pid in self._frozen else f"ended with {process.ended.result()}"

    def _processes(self) -> list[Process]:
        return of_head(self._sessions, self._head_ids)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._changed()
