"""Failures have names. A fault is decided where the exception still has its type, then travels as data."""

from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class FaultKind(StrEnum):
    INFRA = "InfraFault"
    """Something around the work failed; the same operation may be started again."""
    DATA = "DataFault"
    """This prompt cannot be worked on; never turned into a reward of zero."""
    UNAVAILABLE = "Unavailable"
    """A service (data plane, store, engine) does not answer."""
    DRIVER_LOST = "DriverLost"
    """The session host is gone; the actors are not."""
    ACTOR_LOST = "ActorLost"
    """An actor is gone, and with it whatever it held."""
    POISONED = "Poisoned"
    """An operation died past its point of no return: restore, never assume."""
    CLUSTER_LOST = "ClusterLost"
    """The Ray cluster is gone."""
    SPEC = "SpecError"
    """The run spec asks for something that cannot be; the message names the key."""
    STORAGE = "StorageFault"
    """The place for artifacts is full, or cannot be written or read just now."""
    DAMAGED = "CheckpointDamaged"
    """What a committed checkpoint consists of is missing, or is not what was written: reading it again does
    not help, an older one may."""
    CONFLICT = "Conflict"
    """The same operation id came with other arguments, or from an old incarnation."""
    NOT_ON_RECORD = "NotOnRecord"
    """The store knows no such run."""
    CANCELLED = "Cancelled"
    """Somebody called `cancel` on the operation."""
    RESET = "Reset"
    """The run's workflow was reset: its history went back, and the actors did not."""
    INTERNAL = "InternalFault"
    """A defect in Ratchet: not retried, shown with its traceback in the logs."""


RESTARTABLE = frozenset({FaultKind.INFRA, FaultKind.UNAVAILABLE, FaultKind.STORAGE})
"""An operation that failed so is started again when it is submitted again; any other fault is its answer."""


class Fault(BaseModel):
    """A failure as data: small, typed, safe to put into a receipt, a row or a Temporal failure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    message: str
    role: str | None = None
    """The part it happened in: trainer, generator, data-plane, conductor, host."""


class Incident(BaseModel):
    """Something that went wrong with a run, and what was done about it; for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lost: str
    """What was lost, or is silent: trainer, generator, data-plane, session worker, cluster, checkpoint, …"""
    cause: str
    detected_at: float
    """Seconds since the epoch."""
    done: str
    """What was done about it, or is being done."""
    seconds: float | None = None
    """From noticing it to going on; None while that has not come."""

    def __str__(self) -> str:
        took = f" ({self.seconds:.1f} s)" if self.seconds is not None else ""
        return f"{self.lost}: {self.cause}; {self.done}{took}"


class RatchetError(Exception):
    """Base of Ratchet's errors. `str(error)` is one line a user can act on."""

    kind: ClassVar[FaultKind] = FaultKind.INTERNAL

    def __init__(self, message: str, *, role: str | None = None) -> None:
        super().__init__(message)
        self.role = role

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (Ray pickles them); keyword-only arguments need help.
        return (_rebuild, (type(self), str(self), self.role))

    def fault(self) -> Fault:
        return Fault(kind=self.kind, message=str(self), role=self.role)


def _rebuild(cls: type["RatchetError"], message: str, role: str | None) -> "RatchetError":
    return cls(message, role=role)


class InfraFault(RatchetError):
    kind = FaultKind.INFRA


class DataFault(RatchetError):
    kind = FaultKind.DATA


class Unavailable(RatchetError):
    kind = FaultKind.UNAVAILABLE


class DriverLost(RatchetError):
    kind = FaultKind.DRIVER_LOST


class ActorLost(RatchetError):
    kind = FaultKind.ACTOR_LOST


class Poisoned(RatchetError):
    kind = FaultKind.POISONED


class ClusterLost(RatchetError):
    kind = FaultKind.CLUSTER_LOST


class SpecError(RatchetError):
    kind = FaultKind.SPEC


class StorageFault(RatchetError):
    kind = FaultKind.STORAGE


class CheckpointDamaged(StorageFault):
    kind = FaultKind.DAMAGED


class Conflict(RatchetError):
    kind = FaultKind.CONFLICT


class NotOnRecord(Conflict):
    kind = FaultKind.NOT_ON_RECORD


class Cancelled(RatchetError):
    kind = FaultKind.CANCELLED


class Reset(RatchetError):
    kind = FaultKind.RESET


_BY_KIND: dict[FaultKind, type[RatchetError]] = {
    cls.kind: cls
    for cls in (
        InfraFault,
        DataFault,
        Unavailable,
        DriverLost,
        ActorLost,
        Poisoned,
        ClusterLost,
        SpecError,
        StorageFault,
        CheckpointDamaged,
        Conflict,
        NotOnRecord,
        Cancelled,
        Reset,
    )
}


def as_fault(error: BaseException, *, role: str | None = None) -> Fault:
    """Name an exception. Anything unknown is an InternalFault: a defect is not retried for ever."""
    if isinstance(error, RatchetError):
        fault = error.fault()
        return fault if fault.role or not role else fault.model_copy(update={"role": role})
    message = f"{type(error).__name__}: {error}".strip()
    return Fault(kind=FaultKind.INTERNAL, message=message[:2000], role=role)


def as_error(fault: Fault) -> RatchetError:
    """The exception a fault came from, for raising it again on this side of a wire."""
    return _BY_KIND.get(fault.kind, RatchetError)(fault.message, role=fault.role)
