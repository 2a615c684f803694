"""A run's whole control side in one process, over engines that follow a script.

Everything but the engines is the real thing: Temporal, the store, artifacts, the session's activities, the
conductor. For tests of workflows, and for recording golden histories.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from activities.session import SessionActivities
from ratchet.sessions.conductor import Conductor
from ratchet.spec import names
from ratchet.spec.admission import Limit
from ratchet.spec.control import ProbeAnswer, SessionInfo, SessionRequest
from ratchet.spec.home import Home
from ratchet.spec.ids import CLUSTER_QUEUE, CONTROL_QUEUE, OpId, session_queue
from ratchet.spec.operations import AnyArgs, OpAnswer
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunInput, RunResult, RunState
from ratchet.store import Store
from workers.control_worker import control_worker
from workers.testing.engines import Script, ScriptedExecutor

__all__ = ["Script", "ScriptedStack", "scripted_stack"]


class InProcessSession:
    """An OperationsClient straight to a conductor."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    async def submit(self, args: AnyArgs, wait: float) -> OpAnswer:
        await self._conductor.submit(args)
        return await self._conductor.poll(args.op, wait)

    async def poll(self, op: OpId, wait: float) -> OpAnswer:
        return await self._conductor.poll(op, wait)

    async def cancel(self, op: OpId) -> OpAnswer:
        return await self._conductor.cancel(op)

    async def available(self, deadline: float) -> None:
        return


class ScriptedCluster:
    """The cluster queue's activities: sessions are workers of this process."""

    def __init__(self, client: Client, script: Script, home: Home) -> None:
        self._client = client
        self._script = script
        self._home = home
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._conductors: dict[str, Conductor] = {}
        self.most_open = 0
        """The most sessions that were ever open at a time."""
        self.opened: list[str] = []
        self.closed: list[str] = []

    def all(self) -> list[Callable[..., Any]]:
        return [self.open_session, self.probe_session, self.restart_worker, self.close_session]

    @activity.defn(name=names.OPEN_SESSION)
    async def open_session(self, request: SessionRequest) -> SessionInfo:
        queue = session_queue(request.run, request.session)
        self.opened.append(queue)
        self._conductors.setdefault(queue, self._new_conductor())
        self.most_open = max(self.most_open, len(self._conductors))
        return await self.restart_worker(request)

    @activity.defn(name=names.PROBE_SESSION)
    async def probe_session(self, request: SessionRequest) -> ProbeAnswer:
        queue = session_queue(request.run, request.session)
        return ProbeAnswer(head=queue in self._conductors, worker=queue in self._workers)

    @activity.defn(name=names.RESTART_WORKER)
    async def restart_worker(self, request: SessionRequest) -> SessionInfo:
        queue = session_queue(request.run, request.session)
        await self.stop_worker(queue)
        activities = SessionActivities(InProcessSession(self._conductors[queue])).all()
        worker = self._workers[queue] = Worker(self._client, task_queue=queue, activities=activities)
        self._tasks[queue] = asyncio.create_task(worker.run())
        return SessionInfo(run=request.run, session=request.session, queue=queue)

    @activity.defn(name=names.CLOSE_SESSION)
    async def close_session(self, request: SessionRequest) -> None:
        queue = session_queue(request.run, request.session)
        self.closed.append(queue)
        await self.stop_worker(queue)
        self._conductors.pop(queue, None)

    def _new_conductor(self) -> Conductor:
        return Conductor(ScriptedExecutor(self._script, self._home))

    async def lose_head(self, request: SessionRequest) -> None:
        """The cluster is gone with all its actors, and another one has come up in its place."""
        self._conductors[session_queue(request.run, request.session)] = self._new_conductor()
        await self.restart_worker(request)

    async def stop_worker(self, queue: str) -> None:
        """Let nobody poll the queue, as if the session worker were gone."""
        worker, task = self._workers.pop(queue, None), self._tasks.pop(queue, None)
        if worker is not None and task is not None:
            await worker.shutdown()
            await task

    async def stop_all(self) -> None:
        for queue in list(self._workers):
            await self.stop_worker(queue)


@dataclass
class ScriptedStack:
    """Workers of all queues, a store, and a script."""

    client: Client
    store: Store
    script: Script
    cluster: ScriptedCluster
    home: Home

    async def start(
        self, spec: RunSpec, run: str, state: RunState | None = None
    ) -> WorkflowHandle[Any, RunResult]:
        return await self.client.start_workflow(
            names.RUN_WORKFLOW,
            RunInput(spec=spec, state=state or RunState(run=run)),
            id=run,
            task_queue=CONTROL_QUEUE,
            result_type=RunResult,
        )


StackT = TypeVar("StackT", bound=ScriptedStack)


@asynccontextmanager
async def scripted_stack(
    client: Client,
    folder: Path,
    *,
    cached: int = 1000,
    kind: type[StackT] = ScriptedStack,
    store_url: str | None = None,
    limit: Limit | None = None,
) -> AsyncIterator[StackT]:
    """Everything a run needs, over `client`'s server, with its store in `folder` or elsewhere. `limit`: of
    sessions at a time."""
    store = Store(store_url or f"sqlite:///{folder / 'store.db'}")
    store.migrate()
    home, script = Home(folder), Script()
    cluster = ScriptedCluster(client, script, home)
    async with (
        control_worker(client, store, home, limit=limit, max_cached_workflows=cached, sandboxed=True),
        Worker(client, task_queue=CLUSTER_QUEUE, activities=cluster.all()),
    ):
        try:
            yield kind(client, store, script, cluster, home)
        finally:
            await _end_all(client)
            await cluster.stop_all()
            store.close()


async def _end_all(client: Client) -> None:
    """What still runs would be worked on by the next stack over this server, which knows nothing of it."""
    async for execution in client.list_workflows("ExecutionStatus = 'Running'"):
        try:
            await client.get_workflow_handle(execution.id).terminate("the stack it ran on is gone")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # ended meanwhile
                raise
