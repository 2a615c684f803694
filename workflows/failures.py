"""Reading what failed from what Temporal raises."""

from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from ratchet.spec.faults import Fault, FaultKind

_KINDS = {kind.value: kind for kind in FaultKind}


def fault_of(error: BaseException) -> Fault:
    """The fault that an activity's failure carries; a timeout is named as one."""
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError):
        if cause.details:
            return Fault.model_validate(cause.details[0])
        return Fault(kind=_kind(cause.type), message=cause.message)
    if isinstance(cause, TimeoutError):
        activity = error.activity_type if isinstance(error, ActivityError) else "an activity"
        kind = cause.type.name.lower() if cause.type else "timeout"
        return Fault(kind=FaultKind.UNAVAILABLE, message=f"{activity} ended by its {kind} deadline")
    return Fault(kind=FaultKind.INTERNAL, message=f"{type(error).__name__}: {error}")


def nobody_polls(error: ActivityError) -> bool:
    """The activity was never picked up: the session worker is gone (this timeout is not retried)."""
    return isinstance(error.cause, TimeoutError) and error.cause.type == TimeoutType.SCHEDULE_TO_START


def _kind(name: str | None) -> FaultKind:
    return _KINDS.get(name or "", FaultKind.INTERNAL)
