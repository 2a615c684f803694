"""A run's whole control side in one process, over engines that follow a script.

Everything but the engines is the real thing: Temporal, the store, the session's activities, the conductor.
For tests of workflows, and for recording golden histories.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities.session import SessionActivities
from ratchet.sessions.conductor import Conductor
from ratchet.spec import names
from ratchet.spec.control import ProbeAnswer, SessionInfo, SessionRequest
from ratchet.spec.faults import Cancelled, RatchetError
from ratchet.spec.ids import CLUSTER_QUEUE, CONTROL_QUEUE, OpId, OpKind, WeightVersion, session_queue
from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    OpAnswer,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    SnapshotArgs,
    TrainArgs,
)
from ratchet.spec.receipts import (
    AnyReceipt,
    CheckpointReceipt,
    EvaluateReceipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    SnapshotReceipt,
    TrainReceipt,
)
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunInput, RunResult, RunState
from ratchet.store import Store
from workers.control_worker import build_control_worker

Moment = tuple[OpKind, int]
"""An operation of a script: its kind and its step."""


@dataclass
class Script:
    """What the engines do out of the ordinary."""

    holds: dict[Moment, asyncio.Event] = field(default_factory=dict)
    """Operations that wait for an event."""
    faults: dict[Moment, list[RatchetError]] = field(default_factory=dict)
    """Operations that fail, one fault a start."""
    began: defaultdict[Moment, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    """Set when an operation begins."""
    carried_out: list[str] = field(default_factory=list)
    """Every operation that had its effect, in order; one that stands in it twice is a defect."""

    def hold(self, kind: OpKind, step: int) -> asyncio.Event:
        return self.holds.setdefault((kind, step), asyncio.Event())


class ScriptedExecutor:
    """An Executor whose weights are a hash of everything trained so far: what is lost or done twice shows."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._weights = "base"

    async def execute(
        self, args: AnyArgs, progress: Callable[[str], None], cancelled: asyncio.Event
    ) -> AnyReceipt:
        moment = (args.op.kind, args.op.step)
        self._script.began[moment].set()
        if (hold := self._script.holds.get(moment)) is not None:
            waits = [asyncio.create_task(hold.wait()), asyncio.create_task(cancelled.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if cancelled.is_set():
                raise Cancelled(f"{args.op} was cancelled")
        if faults := self._script.faults.get(moment):
            raise faults.pop(0)
        self._script.carried_out.append(str(args.op))
        return self._receipt(args)

    async def cancel(self, args: AnyArgs) -> None:
        pass  # the event that `execute` waits for is enough

    async def recover(self) -> list[tuple[OpId, str, AnyReceipt]]:
        return []

    def _receipt(self, args: AnyArgs) -> AnyReceipt:
        op = str(args.op)
        match args:
            case RestoreArgs():
                self._weights = args.checkpoint or "base"
                return RestoreReceipt(
                    op=op,
                    version=self._version(args),
                    checkpoint=args.checkpoint,
                    num_parameters=1,
                    model_digest="m",
                )
            case RolloutArgs():
                count = args.cursor_end - args.cursor_start
                return RolloutReceipt(
                    op=op,
                    cursor_start=args.cursor_start,
                    cursor_end=args.cursor_end,
                    num_groups=count,
                    num_samples=2 * count,
                    replayed_groups=0,
                    num_tokens=8 * count,
                    reward_mean=0.5,
                    reward_std=0.5,
                    accuracy=0.5,
                    length_mean=4.0,
                    truncated_fraction=0.0,
                    samples_generated=2 * args.cursor_end,
                    version=args.version,
                )
            case TrainArgs():
                trained = f"{self._weights}/{args.cursor_start}-{args.cursor_end}"
                self._weights = xxhash.xxh3_64(trained.encode()).hexdigest()
                return TrainReceipt(
                    op=op,
                    version=self._version(args),
                    cursor_start=args.cursor_start,
                    cursor_end=args.cursor_end,
                    num_groups=args.cursor_end - args.cursor_start,
                    zero_advantage_groups=0,
                    num_tokens=8,
                    optimizer_steps=args.op.step,
                    metrics={"loss": 0.1, "grad_norm": 1.0, "learning_rate": 1e-5, "reward_mean": 0.5},
                )
            case RefitArgs():
                return RefitReceipt(
                    op=op, version=args.version, mover="ipc", num_tensors=1, num_bytes=4, wire_digest="w"
                )
            case SnapshotArgs():
                return SnapshotReceipt(op=op, version=args.version, num_bytes=4)
            case CommitArgs():
                return CheckpointReceipt(
                    op=op,
                    version=args.version,
                    path=f"checkpoints/{args.op.incarnation}-{args.op.step}",
                    digest=f"sha-{args.version.digest}",
                    manifest_digest="m",
                    num_bytes=4,
                    num_files=1,
                    write_s=0.0,
                )
            case EvaluateArgs():
                return EvaluateReceipt(
                    op=op,
                    version=args.version,
                    num_problems=args.num_problems,
                    accuracy=0.5,
                    reward_mean=0.5,
                    length_mean=4.0,
                )

    def _version(self, args: AnyArgs) -> WeightVersion:
        return WeightVersion(incarnation=args.op.incarnation, step=args.op.step, digest=self._weights)


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

    def __init__(self, client: Client, script: Script) -> None:
        self._client = client
        self._script = script
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._conductors: dict[str, Conductor] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []

    def all(self) -> list[Callable[..., Any]]:
        return [self.open_session, self.probe_session, self.restart_worker, self.close_session]

    @activity.defn(name=names.OPEN_SESSION)
    async def open_session(self, request: SessionRequest) -> SessionInfo:
        queue = session_queue(request.run, request.session)
        self.opened.append(queue)
        self._conductors.setdefault(queue, Conductor(ScriptedExecutor(self._script)))
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


@asynccontextmanager
async def scripted_stack(client: Client, folder: Path, *, cached: int = 1000) -> AsyncIterator[ScriptedStack]:
    """Everything a run needs, over `client`'s server, with its store in `folder`."""
    store = Store(f"sqlite:///{folder / 'store.db'}")
    store.migrate()
    script = Script()
    cluster = ScriptedCluster(client, script)
    async with (
        build_control_worker(client, store, max_cached_workflows=cached, sandboxed=True),
        Worker(client, task_queue=CLUSTER_QUEUE, activities=cluster.all()),
    ):
        try:
            yield ScriptedStack(client, store, script, cluster)
        finally:
            await cluster.stop_all()
