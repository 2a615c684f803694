"""A local Ray head: started, watched, its GCS executed again, all of it replaced when anything else dies.

Its processes: gcs_server and raylet, which become children of the supervisor; below the raylet two agents,
whose death ends the raylet at once, and the workers. A raylet cannot be executed again: it is a new node.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from workers.supervisor.children import EARLY_DEATHS, FIRST_PAUSE, LONGEST_PAUSE, Phase
from workers.supervisor.environment import HEAD_VARIABLE, stack_environment
from workers.supervisor.net import accepts, eventually
from workers.supervisor.ports import RAY_PORTS
from workers.supervisor.processes import Process, arguments, end_all, environment, of_head, signal_to
from workers.supervisor.ray_existing import identify
from workers.supervisor.ray_launch import HeadReport, HeadRequest
from workers.supervisor.reaper import Reaper, Watched

logger = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
OBJECT_STORE_BYTES = 512 << 20
SETTLE = 0.1
"""A GCS that died with everything else is not alone: look again after this."""
GCS_MUST_LIVE = 5.0
"""A GCS that dies again within this is beyond re-execution."""


@dataclass(frozen=True)
class _Recording:
    """What it takes to execute a process again."""

    argv: list[str]
    environment: dict[str, str]
    folder: Path
    output: Path
    errors: Path

    @classmethod
    def of(cls, pid: int) -> "_Recording":
        links = Path("/proc") / str(pid)
        return cls(
            argv=arguments(pid),
            environment=environment(pid),
            folder=Path(os.readlink(links / "cwd")),
            output=Path(os.readlink(links / "fd/1")),
            errors=Path(os.readlink(links / "fd/2")),
        )


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
        self.phase = Phase.STOPPED
        self.starts = 0
        self.gcs_starts = 0
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
        self._recording: _Recording | None = None
        self._raylet: Watched | None = None
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
        """Returns when the head answers, replacing one that is up and does not. Raises Unavailable."""
        if self._up.is_set() and not await self.answers():
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
            self._back()

    async def _start_afresh(self) -> None:
        """End every process of earlier heads, delete what they left, start a new one. A head that is started
        while one of the old processes lives may fail, or join the old GCS. Raises Unavailable."""
        self._enter(Phase.STARTING)
        self._unwanted.clear()
        await end_all(self._processes, deadlines.PROCESSES_GONE)
        self._sessions.clear()
        self._head_ids.clear()
        clear_files(self._home)
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
            self._recording = _Recording.of(report.gcs_server)
        except OSError:
            raise Unavailable(
                f"Ray's GCS ended at once (log: {report.session_folder}/logs/gcs_server.out)"
            ) from None
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
        }
        argv = [sys.executable, "-m", "workers.supervisor.ray_launch", request.model_dump_json()]
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
        try:
            while True:
                await asyncio.wait(
                    [self._gcs.ended, self._raylet.ended, unwanted], return_when=asyncio.FIRST_COMPLETED
                )
                if unwanted.done():
                    return "it does not answer"
                await asyncio.wait([self._raylet.ended], timeout=SETTLE)
                if not self._raylet.alive:
                    return f"its raylet ended with {self._raylet.ended.result()}"
                if loop.time() - gcs_started < GCS_MUST_LIVE:
                    return "its GCS ended twice"
                gcs_started = loop.time()
                self._gcs = self._execute_gcs_again()
                try:
                    await eventually(
                        lambda: accepts(ADDRESS, self._first_port),
                        deadlines.GCS_BACK,
                        "its GCS does not listen again",
                    )
                except Unavailable as error:
                    return str(error)
                logger.warning("ray's GCS died alone and was executed again (pid %d)", self._gcs.pid)
                self._changed()
        finally:
            unwanted.cancel()

    def _execute_gcs_again(self) -> Watched:
        old = self._recording
        assert old
        self.gcs_starts += 1
        with old.output.open("ab") as output, old.errors.open("ab") as errors:
            return self._reaper.start(
                old.argv, environment=old.environment, output=output, errors=errors, folder=old.folder
            )

    def _processes(self) -> list[Process]:
        return of_head(self._sessions, self._head_ids)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._changed()


def make_token(home: Home) -> None:
    """The secret that every process of the cluster shows; readable by this user only."""
    if not home.ray_token.exists():
        with open(os.open(home.ray_token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))


def clear_files(home: Home) -> None:
    """Remove Ray's temp folder. The logs of its last session stay, as logs/ray-last."""
    with contextlib.suppress(OSError):
        sessions = [path for path in home.ray_temp.glob("session_*") if not path.is_symlink()]
        if sessions:
            kept = home.logs / "ray-last"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(max(sessions, key=lambda path: path.stat().st_mtime) / "logs", kept)
    shutil.rmtree(home.ray_temp, ignore_errors=True)
