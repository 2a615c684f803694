"""Light activities of the control queue: they write down what happened, and look up what is there."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import activity

from activities.diagnosis import diagnose
from activities.failures import named_failures
from ratchet.artifacts.restore_points import restore_point
from ratchet.artifacts.retention import retain
from ratchet.sessions.failpoints import failpoint
from ratchet.spec import deadlines, names
from ratchet.spec.control import (
    ChooseCheckpoint,
    DiagnoseRequest,
    Diagnosis,
    RecordRequest,
    RegisterRun,
    RestorePoint,
    RetainAnswer,
    RetainRequest,
)
from ratchet.spec.home import Home
from ratchet.store import Store, code_versions, input_digests

T = TypeVar("T")


class ControlActivities:
    """Stateless but for the store and the artifacts. Both block, so each call has a thread of the loop's
    executor: a locked database must not hold up the workflow tasks of the same process."""

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home
        self._code = code_versions()

    def all(self) -> list[Callable[..., Any]]:
        """Every activity, for a worker."""
        return [self.register_run, self.record, self.choose_checkpoint, self.retain, self.diagnose]

    @activity.defn(name=names.REGISTER_RUN)
    async def register_run(self, request: RegisterRun) -> None:
        """Write a run's row. Fails with Conflict, for good, or Unavailable, to be retried."""
        at = activity.info().scheduled_time.timestamp()  # the same for every attempt
        with named_failures():
            inputs = await asyncio.to_thread(input_digests, request.spec.environment)
            await asyncio.to_thread(self._store.register_run, request, at=at, code=self._code, inputs=inputs)

    @activity.defn(name=names.RECORD)
    async def record(self, request: RecordRequest) -> None:
        """Write rows about a run. Fails with Conflict, for good, or Unavailable, to be retried."""
        await asyncio.to_thread(failpoint, "record.write")
        with named_failures():
            await asyncio.to_thread(self._store.record, request)

    @activity.defn(name=names.CHOOSE_CHECKPOINT)
    async def choose_checkpoint(self, request: ChooseCheckpoint) -> RestorePoint:
        """Where a run can go back to. Fails with StorageFault, to be retried."""
        with named_failures():
            return await _beating(restore_point, self._home, request.run, request.avoid)

    @activity.defn(name=names.RETAIN)
    async def retain(self, request: RetainRequest) -> RetainAnswer:
        """Delete what a run's retention does not keep. Fails with StorageFault, to be retried."""
        with named_failures():
            scores = await asyncio.to_thread(self._scores, request)
            return await _beating(retain, self._home, request, scores)

    @activity.defn(name=names.DIAGNOSE)
    async def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        """Who is silent in a run that stands still."""
        return await diagnose(activity.client(), request.run)

    def _scores(self, request: RetainRequest) -> dict[tuple[int, int], float]:
        """Held-out values of the metric that decides which checkpoint is the best, by (incarnation, step)."""
        metric = request.spec.checkpointing.keep_best
        if metric == "none":
            return {}
        rows = self._store.evaluations(request.run)
        values = {(row.incarnation, row.step): getattr(row, metric) for row in rows}
        return {key: math.nan if value is None else value for key, value in values.items()}


async def _beating(work: Callable[..., T], *arguments: object) -> T:
    """Do it in a thread, with heartbeats while it takes."""
    task = asyncio.create_task(asyncio.to_thread(work, *arguments))
    while not task.done():
        activity.heartbeat()
        await asyncio.wait({task}, timeout=deadlines.HEARTBEAT_THROTTLE)
    return await task
