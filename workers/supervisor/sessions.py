"""Sessions of runs: their workers as children, and the activities of the cluster queue."""

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from temporalio import activity

from ratchet.sessions.failpoints import failpoint
from ratchet.spec import deadlines, names
from ratchet.spec.control import ProbeAnswer, SessionInfo, SessionRequest
from ratchet.spec.faults import InfraFault
from ratchet.spec.home import Home
from ratchet.spec.ids import session_queue
from ratchet.telemetry import targets
from workers.supervisor.children import Child, Phase, Plan
from workers.supervisor.files import write_atomically
from workers.supervisor.reaper import Reaper

logger = logging.getLogger(__name__)

_HEARTBEAT_EVERY = 2.0

Key = tuple[str, int]


class RayCluster(Protocol):
    """Where the actors of sessions run."""

    command: Callable[..., Sequence[str]]
    """(name, module, *words): what to execute here for `python -m module words` to run there."""
    is_here: bool
    """Whether it runs here; else what is executed here only stands in for it."""
    last_end: str | None
    """When and how the one before it was lost, in words."""

    async def answers(self) -> bool: ...
    async def ensure(self) -> None: ...


class Sessions:
    """The session workers of this host. A session that was open when the supervisor ended is started again
    when its workflow asks for it."""

    def __init__(
        self,
        home: Home,
        environment: dict[str, str],
        cluster: RayCluster,
        reaper: Reaper,
        changed: Callable[[], None],
        took_over: str | None = None,
    ) -> None:
        """`took_over`: how this supervisor came to own sessions that another one had opened, in words."""
        self._home = home
        self._environment = environment
        self._cluster = cluster
        self._reaper = reaper
        self._changed = changed
        self._took_over = took_over
        self._locks: dict[Key, asyncio.Lock] = {}
        self._restarts_done: dict[Key, str] = {}
        self._clusters: dict[Key, str | None] = {}
        """How the cluster before the one that a session was opened on had ended."""
        self._held = False
        self.children: dict[Key, Child] = {}

    # --- what the head tells

    def head_lost(self) -> None:
        """Kill the workers and with them their hosts: a Ray driver that outlives its head only does harm."""
        self._held = True
        for child in self.children.values():
            child.hold()

    def head_back(self) -> None:
        self._held = False
        for child in self.children.values():
            child.release()

    async def stop(self, grace: float = deadlines.STOP_GRACE) -> None:
        await asyncio.gather(*(child.stop(grace) for child in self.children.values()))

    # --- activities

    def activities(self) -> list[Callable[..., Any]]:
        return [self.open_session, self.probe_session, self.restart_worker, self.close_session]

    @activity.defn(name=names.OPEN_SESSION)
    async def open_session(self, request: SessionRequest) -> SessionInfo:
        """A head that answers and a session worker that polls; joins what is already there. Earlier sessions
        of the run are closed. Raises Unavailable."""
        async with heartbeats(), self._alone(_key(request)):
            await asyncio.to_thread(failpoint, "open_session.begin")
            await self._cluster.ensure()
            await self._close_earlier(request)
            await self._running(request)
            ended, key = self._cluster.last_end or self._took_over, _key(request)
            # A session that is new here had another cluster, if it is not altogether new.
            before = None if self._took_over else ended
            lost = ended if ended != self._clusters.get(key, before) else None
            self._clusters[key] = ended
        return SessionInfo(
            run=request.run, session=request.session, queue=session_queue(*key), cluster_lost=lost
        )

    @activity.defn(name=names.PROBE_SESSION)
    async def probe_session(self, request: SessionRequest) -> ProbeAnswer:
        """What of the session is there, at this moment."""
        child = self.children.get(_key(request))
        head = await self._cluster.answers()
        worker = child is not None and child.pid is not None
        detail = (
            f"worker {child.phase}, started {child.starts} times" if child else "no worker of this session"
        )
        return ProbeAnswer(head=head, worker=worker, detail=detail)

    @activity.defn(name=names.RESTART_WORKER)
    async def restart_worker(self, request: SessionRequest) -> SessionInfo:
        """Another session worker, with a new host, that polls. A retry of this activity does not kill the
        worker that its first attempt started. Raises Unavailable."""
        key = _key(request)
        info = activity.info()
        order = f"{info.workflow_run_id or info.activity_run_id}/{info.activity_id}"
        async with heartbeats(), self._alone(_key(request)):
            child = self.children.get(key)
            # One that has just been started again is on its way already.
            if child and child.phase is Phase.READY and self._restarts_done.get(key) != order:
                await child.replace()
            self._restarts_done[key] = order
            await self._running(request)
        return SessionInfo(run=request.run, session=request.session, queue=session_queue(*key))

    @activity.defn(name=names.CLOSE_SESSION)
    async def close_session(self, request: SessionRequest) -> None:
        """No worker and no actor of the session is left, nor its folder. Raises InfraFault."""
        async with heartbeats(), self._alone(_key(request)):
            await asyncio.to_thread(failpoint, "close_session.begin")
            await self._close(request.run, request.session)

    # --- sessions that nobody closes

    async def close_if(self, key: Key, is_abandoned: Callable[[], Awaitable[bool]]) -> None:
        """Close it if that is so, with no order for it in between. Raises InfraFault or Unavailable."""
        async with self._alone(key):
            if await is_abandoned():
                logger.warning("session %d of %s was left open: closing it", key[1], key[0])
                await self._close(*key)

    def known(self) -> list[Key]:
        """Sessions that were opened and not closed, by this supervisor or one before it."""
        found = set(self.children)
        for folder in (self._home.root / "sessions").glob("*-*"):
            run, _, session = folder.name.rpartition("-")
            if session.isdecimal():
                found.add((run, int(session)))
        return sorted(found)

    # ---

    @contextlib.asynccontextmanager
    async def _alone(self, key: Key) -> AsyncIterator[None]:
        """One order at a time for a session; they come again after timeouts."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            yield

    async def _running(self, request: SessionRequest) -> None:
        key = _key(request)
        folder = self._home.session_folder(*key)
        write_atomically(folder / "request.json", request.model_dump_json())
        if key not in self.children:
            child = self.children[key] = Child(self._plan(*key), self._reaper, self._changed)
            if self._held:
                child.hold()
            child.start()
        elif self.children[key].phase is Phase.FAILED:
            await self.children[key].replace()
        await self.children[key].ready(deadlines.WORKER_READY)

    def _plan(self, run: str, session: int) -> Plan:
        name = f"session-{run}-{session}"
        ready = self._home.session_folder(run, session) / "ready.json"

        async def is_ready(pid: int, _began: float) -> bool:
            found = _pid_in(ready)
            return found == pid or (found is not None and not self._cluster.is_here)

        return Plan(
            name=name,
            argv=self._cluster.command(
                name, "workers.session_worker", "--run", run, "--session", str(session)
            ),
            environment=self._environment,
            log=self._home.logs / f"{name}.log",
            is_ready=is_ready,
            ready_within=deadlines.WORKER_READY,
            alive_file=self._home.root / "alive" / name,
            before_start=lambda: ready.unlink(missing_ok=True),
        )

    async def _close_earlier(self, request: SessionRequest) -> None:
        """No earlier session of the run has anything left, whoever opened it."""
        if request.session == 1 or (request.run, request.session) in self.children:
            return
        for run, session in self.known():
            if run == request.run and session < request.session:
                await self._close(run, session)
        await self._reap(request.run, "--before", request.session)

    async def _close(self, run: str, session: int) -> None:
        self._clusters.pop((run, session), None)
        child = self.children.pop((run, session), None)
        if child:
            await child.stop()
        # A head that does not answer is not always gone: its GCS may be about to be executed again, and then
        # its actors are still there.
        await self._cluster.ensure()
        await self._reap(run, "--session", session)
        shutil.rmtree(self._home.session_folder(run, session), ignore_errors=True)
        (self._home.root / "alive" / f"session-{run}-{session}").unlink(missing_ok=True)
        for process in ("session", "data-plane"):
            targets.withdraw(self._home, f"{process}-{run}-{session}")
        self._changed()

    async def _reap(self, run: str, which: str, session: int) -> None:
        argv = self._cluster.command("reap", "workers.reap", "--run", run, which, str(session))
        log = self._home.logs / "reap.log"
        with log.open("ab") as output:
            code = await self._reaper.run(
                argv, environment=self._environment, output=output, within=deadlines.RAY_CALL
            )
        if code != 0:
            raise InfraFault(f"the actors of {run} ({which} {session}) could not be ended (log: {log})")


def _key(request: SessionRequest) -> Key:
    return request.run, request.session


def _pid_in(file: Path) -> int | None:
    try:
        return int(json.loads(file.read_text())["pid"])
    except FileNotFoundError:
        return None


@contextlib.asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeats of the current activity while the body runs."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(_HEARTBEAT_EVERY)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
