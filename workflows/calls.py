"""Calling the run's session: its operations and its processes, and what is done when nobody picks one up."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from ratchet.spec import deadlines, names
from ratchet.spec.control import CancelRequest, ProbeAnswer, SessionInfo, SessionRequest
from ratchet.spec.faults import ActorLost, Cancelled, ClusterLost, Fault, FaultKind, Incident
from ratchet.spec.ids import CLUSTER_QUEUE, OpId, session_queue
from ratchet.spec.operations import AnyArgs, CommitArgs, RolloutArgs
from ratchet.spec.receipts import Receipt
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunState
from workflows.failures import MAX_REVIVALS, OPERATION_RETRY, expired, fault_of, nobody_polls
from workflows.once_more import once_more
from workflows.summaries import summary

AnswerT = TypeVar("AnswerT")
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
        """The operation's receipt. Raises ActivityError with its fault, ClusterLost, or ActorLost if it does
        not end."""
        key = str(args.op)
        self.open[key] = args
        self._open_changed()
        try:
            return await self._patiently(args, expected)
        finally:
            self.open.pop(key, None)
            self._open_changed()

    async def _patiently(self, args: AnyArgs, expected: type[ReceiptT]) -> ReceiptT:
        """Over a disk that is full for a while; what follows for a checkpoint, `Checkpoints` decides."""
        pause = deadlines.STORAGE_PAUSE
        for _ in range(deadlines.MAX_STARTS - 1):
            try:
                return await self._joined(args, expected)
            except ActivityError as error:
                fault = fault_of(error)
                if fault.kind is not FaultKind.STORAGE or isinstance(args, CommitArgs):
                    raise
            await self._wait_for_storage(args, fault, pause)
            pause *= 2
        return await self._joined(args, expected)

    async def _wait_for_storage(self, args: AnyArgs, fault: Fault, pause: float) -> None:
        """Raises Cancelled if a rollout is not wanted any more: the run is to stop."""
        now = workflow.time()
        done = f"the run waits, and tries again in {pause:.0f} s ({summary(args)})"
        incident = Incident(lost="storage", cause=fault.message, detected_at=now, done=done)
        self._note(f"storage/{args.op}/{now}", incident)
        if not isinstance(args, RolloutArgs):
            await workflow.sleep(pause)
            return
        try:
            await workflow.wait_condition(lambda: self._state.stop_requested, timeout=_s(pause))
        except TimeoutError:
            return
        raise Cancelled(f"{args.op} was given up while it waited for storage: {fault.message}")

    async def _joined(self, args: AnyArgs, expected: type[ReceiptT]) -> ReceiptT:
        """Over a session worker that is gone, and over a deadline that passed while the stack was down."""
        overdue = False
        for _ in range(MAX_REVIVALS):
            try:
                # Cancelled here, one lets go of the operation and leaves its activity be (decisions/0026).
                return await asyncio.shield(self._start(args, expected))
            except ActivityError as error:
                if nobody_polls(error):
                    await self._revive()
                elif not expired(error):
                    raise
                elif overdue:
                    raise ActorLost(f"{fault_of(error).message}, twice in a row") from error
                else:
                    overdue = True
        raise ClusterLost(f"nobody polls {session_queue(self._state.run, self._state.session)}")

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
            summary=summary(args),
        )

    async def cancel(self, op: OpId) -> None:
        """Ask the conductor to end an operation; its activity then fails with Cancelled."""
        await once_more(
            lambda: workflow.start_activity(
                names.CANCEL_OPERATION,
                CancelRequest(op=str(op)),
                task_queue=session_queue(self._state.run, self._state.session),
                start_to_close_timeout=_s(deadlines.CANCEL),
                schedule_to_close_timeout=_s(deadlines.CANCEL * 4),
                summary=f"step {op.step}: give up {op.kind.value}",
            )
        )

    async def open_session(self) -> SessionInfo:
        """A Ray cluster, and a session worker that polls. Again: no effect."""
        return await self._errand(
            names.OPEN_SESSION,
            SessionInfo,
            within=deadlines.OPEN_SESSION,
            altogether=deadlines.OPEN_SESSION * 4,
            summary=f"open session {self._state.session}",
        )

    async def close_session(self) -> None:
        """End the session's processes and actors. Again: no effect."""
        await self._errand(
            names.CLOSE_SESSION,
            type(None),
            within=deadlines.CLOSE_SESSION,
            altogether=deadlines.CLOSE_SESSION * 4,
            summary=f"close session {self._state.session}",
        )

    async def _revive(self) -> None:
        """Nobody polls the session's queue: look, and start another session worker if the head lives."""
        detected_at = workflow.time()
        answer = await self._errand(
            names.PROBE_SESSION,
            ProbeAnswer,
            within=deadlines.PROBE,
            altogether=deadlines.OPEN_SESSION,
            summary=f"look after session {self._state.session}",
        )
        if not answer.head:
            raise ClusterLost(f"the Ray head of session {self._state.session} is gone: {answer.detail}")
        await self._errand(
            names.RESTART_WORKER,
            SessionInfo,
            within=deadlines.OPEN_SESSION,
            altogether=deadlines.OPEN_SESSION * 4,
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

    async def _errand(
        self, name: str, answer: type[AnswerT], *, within: float, altogether: float, summary: str
    ) -> AnswerT:
        """Have the supervisor see to the session: one attempt within, all of them altogether so many seconds.
        Raises ActivityError with its fault, or ClusterLost if it does not come to an end."""
        request = SessionRequest(run=self._state.run, session=self._state.session, spec=self.spec)
        try:
            return await once_more(
                lambda: workflow.start_activity(
                    name,
                    request,
                    result_type=answer,
                    task_queue=CLUSTER_QUEUE,
                    start_to_close_timeout=_s(within),
                    schedule_to_close_timeout=_s(altogether),
                    summary=summary,
                )
            )
        except ActivityError as error:
            if expired(error):
                raise ClusterLost(f"{fault_of(error).message}, twice in a row") from error
            raise
