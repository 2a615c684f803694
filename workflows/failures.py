"""What failed, and what follows from it. This table is the whole of it; the rest of Ratchet asks here.

| fault | tried again | when that does not help |
|---|---|---|
| nothing heard from an attempt, or its worker is lost | at once, by Temporal: it joins | the deadline |
| the deadline of an operation, or of the session's processes | once more, by the run: it joins | recovery |
| the deadline of a record or a look-up | once more, by the run | final |
| InfraFault, Unavailable | after a pause, by Temporal: it starts again, MAX_STARTS times | final |
| StorageFault | after pauses, by the run: it starts again, for ten minutes | final |
| StorageFault of a checkpoint | by the run: at the next due one, at its end for five minutes | final |
| CheckpointDamaged, in a restore | | recovery, from the next older checkpoint |
| DriverLost | after a pause, by Temporal: it joins through the next host | recovery |
| nobody polls the session | by the run: another session worker, then it joins | ClusterLost |
| ActorLost, Poisoned, ClusterLost | | recovery |
| the workflow was reset | | recovery |
| Cancelled | | what cancelled it goes on |
| DataFault, SpecError, Conflict, InternalFault | | final |

A deadline counts the time that the stack was down: one that passed overnight says nothing of what it was for.
Hence "once more".
Recovery: a new incarnation restores the newest checkpoint and trains on from there (workflows/recovery.py).
Final: the run fails, with the cause, and `ratchet run resume` goes on from its newest checkpoint.
"""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutError, TimeoutType

from ratchet.spec import deadlines
from ratchet.spec.faults import Fault, FaultKind, RatchetError

RECOVERABLE = frozenset(
    {
        FaultKind.ACTOR_LOST,
        FaultKind.POISONED,
        FaultKind.CLUSTER_LOST,
        FaultKind.DRIVER_LOST,
        FaultKind.RESET,
    }
)

MAX_RECOVERIES = 5
"""In a row, without a step trained in between; then the cause is not one that recovering helps against."""

NOT_STORED = frozenset({FaultKind.STORAGE, FaultKind.DAMAGED})
"""Of a checkpoint that is written: it costs the checkpoint, and not the run."""

MAX_REVIVALS = 5
"""Session workers started in a row for one operation before the session counts as lost."""

# A retry only joins, so it comes at once and its pause never grows; an operation that failed brings a pause
# of its own.
OPERATION_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=deadlines.RETRY_INTERVAL), backoff_coefficient=1.0
)


_KINDS = {kind.value: kind for kind in FaultKind}


def fault_of(error: BaseException) -> Fault:
    """The fault that an activity's failure carries; a timeout is named as one."""
    if isinstance(error, RatchetError):
        return error.fault()
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError):
        if cause.details:
            return Fault.model_validate(cause.details[0])
        return Fault(kind=_kind(cause.type), message=cause.message)
    if isinstance(cause, TimeoutError):
        activity = error.activity_type if isinstance(error, ActivityError) else "an activity"
        kind = cause.type.name.lower() if cause.type else "timeout"
        last = f": {cause.cause.message}" if isinstance(cause.cause, ApplicationError) else ""
        return Fault(kind=FaultKind.UNAVAILABLE, message=f"{activity} ended by its {kind} deadline{last}")
    return Fault(kind=FaultKind.INTERNAL, message=f"{type(error).__name__}: {error}")


def nobody_polls(error: ActivityError) -> bool:
    """The activity was never picked up: the session worker is gone (this timeout is not retried)."""
    return isinstance(error.cause, TimeoutError) and error.cause.type == TimeoutType.SCHEDULE_TO_START


def expired(error: ActivityError) -> bool:
    """It ended by its deadline, or because no further attempt would fit into it."""
    cause = error.cause
    overdue = isinstance(cause, TimeoutError) and cause.type == TimeoutType.SCHEDULE_TO_CLOSE
    return overdue or error.retry_state is RetryState.TIMEOUT


def lost_part(fault: Fault) -> str:
    """What a recovery is for, in a word or two."""
    words = {
        FaultKind.CLUSTER_LOST: "cluster",
        FaultKind.DRIVER_LOST: "session host",
        FaultKind.DAMAGED: "checkpoint",
        FaultKind.RESET: "history",
    }
    return words.get(fault.kind) or fault.role or "session"


def _kind(name: str | None) -> FaultKind:
    return _KINDS.get(name or "", FaultKind.INTERNAL)
