"""Calling the run's session: its operations and its processes, and what is done when nobody picks one up."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from ratchet.spec import deadlines, names
from ratchet.spec.control import CancelRequest, ProbeAnswer, SessionInfo, SessionRequest
from ratchet.spec.faults import ClusterLost, Incident
from ratchet.spec.ids import CLUSTER_QUEUE, OpId, session_queue
from ratchet.spec.operations import AnyArgs
from ratchet.spec.receipts import Receipt
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunState
from workflows.failures import MAX_REVIVALS, OPERATION_RETRY, nobody_polls
from workflows.summaries import summary

ReceiptT = TypeVar("ReceiptT", bound=Receipt)


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class SessionCalls:
    """Operations on the run's session."""

    def __init__(
        self,
        spec: RunSpec,
        state: RunState,
        open_changed: Callable[[], None],
        note: Callable[[str, Incident], None],
    ) -> None:
        self.spec = spec
        self._state = state
        self._open_changed = open_changed
        self._note = note
        self.open: dict[str, AnyArgs] = {}
        """Operations in flight, by id."""

    async def run(self, args: AnyArgs, expected: type[ReceiptT]) -> ReceiptT:
        """The operation's receipt. Raises ActivityError with its fault, or ClusterLost."""
        key = str(args.op)
        self.open[key] = args
        self._open_changed()
        try:
            for _ in range(MAX_REVIVALS):
                try:
                    return await self._start(args, expected)
                except ActivityError as error:
                    if not nobody_polls(error):
                        raise
                    await self._revive()
            raise ClusterLost(f"nobody polls {session_queue(self._state.run, self._state.session)}")
        finally:
            self.open.pop(key, None)
            self._open_changed()

    def _start(self, args: AnyArgs, expected: type[ReceiptT]) -> ActivityHandle[ReceiptT]:
        return workflow.start_activity(
            args.kind.value,
            args,
            result_type=expected,
            activity_id=str(args.op),
            task_queue=session_queue(self._state.run, self._state.session),
            schedule_to_start_timeout=_s(deadlines.SCHEDULE_TO_START),
            # Over all attempts: a session that cannot be reached must end in a failure, not in retries.
            schedule_to_close_timeout=_s(deadlines.OPERATION[args.kind]),
            heartbeat_timeout=_s(deadlines.HEARTBEAT),
            retry_policy=OPERATION_RETRY,
            cancellation_type=ActivityCancellationType.ABANDON,
            summary=summary(args),
        )

    async def cancel(self, op: OpId) -> None:
        """Ask the conductor to end an operation; its activity then fails with Cancelled."""
        await workflow.execute_activity(
            names.CANCEL_OPERATION,
            CancelRequest(op=str(op)),
            task_queue=session_queue(self._state.run, self._state.session),
            start_to_close_timeout=_s(deadlines.CANCEL),
            schedule_to_close_timeout=_s(deadlines.CANCEL * 4),
            summary=f"step {op.step}: give up {op.kind.value}",
        )

    async def open_session(self) -> SessionInfo:
        """A Ray cluster, and a session worker that polls. Again: no effect."""
        request = SessionRequest(run=self._state.run, session=self._state.session, spec=self.spec)
        return await workflow.execute_activity(
            names.OPEN_SESSION,
            request,
            result_type=SessionInfo,
            task_queue=CLUSTER_QUEUE,
            start_to_close_timeout=_s(deadlines.OPEN_SESSION),
            schedule_to_close_timeout=_s(deadlines.OPEN_SESSION * 4),
            summary=f"open session {self._state.session}",
        )

    async def close_session(self) -> None:
        """End the session's processes and actors. Again: no effect."""
        request = SessionRequest(run=self._state.run, session=self._state.session, spec=self.spec)
        await workflow.execute_activity(
            names.CLOSE_SESSION,
            request,
            task_queue=CLUSTER_QUEUE,
            start_to_close_timeout=_s(deadlines.CLOSE_SESSION),
            schedule_to_close_timeout=_s(deadlines.CLOSE_SESSION * 4),
            summary=f"close session {self._state.session}",
        )

    async def _revive(self) -> None:
        """Nobody polls the session's queue: look, and start another session worker if the head lives."""
        detected_at = workflow.time()
        request = SessionRequest(run=self._state.run, session=self._state.session, spec=self.spec)
        answer = await workflow.execute_activity(
            names.PROBE_SESSION,
            request,
            result_type=ProbeAnswer,
            task_queue=CLUSTER_QUEUE,
            start_to_close_timeout=_s(deadlines.PROBE),
            schedule_to_close_timeout=_s(deadlines.OPEN_SESSION),
            summary=f"look after session {self._state.session}",
        )
        if not answer.head:
            raise ClusterLost(f"the Ray head of session {self._state.session} is gone: {answer.detail}")
        await workflow.execute_activity(
            names.RESTART_WORKER,
            request,
            result_type=SessionInfo,
            task_queue=CLUSTER_QUEUE,
            start_to_close_timeout=_s(deadlines.OPEN_SESSION),
            schedule_to_close_timeout=_s(deadlines.OPEN_SESSION * 4),
            summary=f"restart the worker of session {self._state.session}",
        )
        self._note(
            f"session-worker/{detected_at}",
            Incident(
                lost="session worker",
                cause=f"nobody polled {session_queue(self._state.run, self._state.session)}",
                detected_at=detected_at,
                done="another one was started",
                seconds=workflow.time() - detected_at,
            ),
        )
