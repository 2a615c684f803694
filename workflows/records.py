"""The control queue: what a run has written down and looked up while it goes on."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from ratchet.spec import deadlines, names
from ratchet.spec.control import (
    AnyEntry,
    ChooseCheckpoint,
    DiagnoseRequest,
    Diagnosis,
    RecordRequest,
    RegisterRun,
    RestorePoint,
    RetainAnswer,
    RetainRequest,
    StepEntry,
)
from ratchet.spec.faults import FaultKind
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase, RunState
from workflows.failures import fault_of
from workflows.once_more import once_more

RECORD_EVERY = 1.0
"""Seconds between two records of steps; far below what a person notices, and an argument stays small."""

STATE = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATE)
STEP = SearchAttributeKey.for_int(names.ATTRIBUTE_STEP)
INCARNATION = SearchAttributeKey.for_int(names.ATTRIBUTE_INCARNATION)


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class Records:
    """Rows for the store, written while the run goes on."""

    def __init__(self, state: RunState, put_on_record: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`put_on_record` is for a store that has lost the run."""
        self._state = state
        self._put_on_record = put_on_record
        self._putting: asyncio.Task[None] | None = None
        self._open: list[asyncio.Task[None]] = []
        self._steps: list[StepEntry] = []
        self._steps_written_at = 0.0

    @property
    def pending(self) -> bool:
        return bool(self._open or self._steps)

    def start(self, what: str, *entries: AnyEntry, incarnation: int | None = None) -> None:
        """Write rows; waits for nothing. A failure is told by the next `step` or `written`."""
        state = self._state
        request = RecordRequest(
            run=state.run, incarnation=incarnation or state.incarnation, at=workflow.time(), entries=entries
        )
        self._open = [handle for handle in self._open if not handle.done() or handle.exception()]
        self._open.append(asyncio.create_task(self._write(request, what, _record(request, what))))

    async def _write(self, request: RecordRequest, what: str, first: ActivityHandle[None]) -> None:
        try:
            await once_more(lambda: _record(request, what), first)
        except ActivityError as error:
            if fault_of(error).kind is not FaultKind.NOT_ON_RECORD:
                raise
            if self._putting is None or self._putting.done():
                self._putting = asyncio.create_task(self._put_on_record())
            await self._putting
            await once_more(lambda: _record(request, what))

    async def step(self, entry: StepEntry) -> None:
        """Write a step down. Waits for *earlier* records only, so that a store that is away holds the run up
        after one step, not at once, and for good only past a deadline. Steps that take less than
        RECORD_EVERY travel together: a record costs the server as much as an operation does."""
        self._steps.append(entry)
        if entry.finished_at - self._steps_written_at >= RECORD_EVERY:
            earlier, self._open = self._open, []
            self.start_steps()
            for handle in earlier:
                await handle

    def start_steps(self) -> None:
        """Write the steps that wait for company."""
        steps, self._steps = self._steps, []
        if steps:
            self._steps_written_at = steps[-1].finished_at
            _search_attributes(STEP.value_set(steps[-1].step))
            first, last = steps[0].step, steps[-1].step
            self.start(f"step {last}" if first == last else f"steps {first} to {last}", *steps)

    async def written(self) -> None:
        """All records are in the store."""
        self.start_steps()
        earlier, self._open = self._open, []
        for handle in earlier:
            await handle

    def forget(self) -> None:
        """Wait for none of those under way any more: one of them failed."""
        self._open = []

    def show(self, phase: RunPhase) -> None:
        """Let the workflow be found by its state."""
        state = self._state
        _search_attributes(
            STATE.value_set(phase.value),
            STEP.value_set(state.step),
            INCARNATION.value_set(state.incarnation),
        )


def _record(request: RecordRequest, what: str) -> ActivityHandle[None]:
    return workflow.start_activity(
        names.RECORD,
        request,
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_s(deadlines.RECORD),
        schedule_to_close_timeout=_s(deadlines.RECORD_SCHEDULE_TO_CLOSE),
        summary=f"record {what}",
    )


async def register_run(spec: RunSpec, state: RunState) -> None:
    """The run's row in the store: a launch answers once it is there."""
    request = RegisterRun(
        run=state.run, spec=spec, workflow_run_id=workflow.info().run_id, incarnation=state.incarnation
    )
    await once_more(
        lambda: workflow.start_activity(
            names.REGISTER_RUN,
            request,
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=_s(deadlines.RECORD),
            schedule_to_close_timeout=_s(deadlines.RECORD_SCHEDULE_TO_CLOSE),
            summary=f"register {request.run}",
        )
    )


async def choose_checkpoint(state: RunState) -> RestorePoint:
    """The newest committed checkpoint, and how far incarnations have come."""
    request = ChooseCheckpoint(run=state.run, avoid=tuple(state.avoid))
    return await once_more(
        lambda: workflow.start_activity(
            names.CHOOSE_CHECKPOINT,
            request,
            result_type=RestorePoint,
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=_s(deadlines.CHOOSE_CHECKPOINT),
            schedule_to_close_timeout=_s(deadlines.CHOOSE_CHECKPOINT * 4),
            heartbeat_timeout=_s(deadlines.HEARTBEAT),
            summary="find the newest checkpoint",
        )
    )


async def retain(spec: RunSpec, state: RunState) -> RetainAnswer:
    """Delete what the run's retention does not keep."""
    last = state.last_checkpoint
    in_use = {path for path in (last.path if last else None, state.restored_from) if path}
    return await workflow.execute_activity(
        names.RETAIN,
        RetainRequest(run=state.run, spec=spec, in_use=tuple(sorted(in_use))),
        result_type=RetainAnswer,
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_s(deadlines.RETAIN),
        schedule_to_close_timeout=_s(deadlines.RETAIN * 2),
        heartbeat_timeout=_s(deadlines.HEARTBEAT),
        summary="delete superfluous checkpoints",
    )


async def diagnose(run: str) -> Diagnosis | None:
    """Who is silent; None if nobody could say."""
    try:
        return await workflow.execute_activity(
            names.DIAGNOSE,
            DiagnoseRequest(run=run),
            result_type=Diagnosis,
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=_s(deadlines.DIAGNOSE),
            schedule_to_close_timeout=_s(deadlines.DIAGNOSE * 2),
            summary="see who is silent",
        )
    except ActivityError as error:
        workflow.logger.warning("cannot see who is silent: %s", error.cause)
        return None


def _search_attributes(*updates: SearchAttributeUpdate[Any]) -> None:
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]
