"""What a data plane raises."""

from ratchet.sessions.losses import GroupsMissing
from ratchet.spec.faults import FaultKind, RatchetError


class DataPlaneError(RatchetError):
    """Base of what a data plane raises."""

    kind = FaultKind.UNAVAILABLE


class DataPlaneUnavailable(DataPlaneError):
    """It does not answer, or it lost its contents: it takes another one, and a refill."""


class DataPlaneTimeout(DataPlaneUnavailable):
    """It answered nothing within the deadline."""


class NotReady(DataPlaneError, GroupsMissing):
    """A group asked for is not there: not yet, or its bytes were lost. The message names the keys."""


class Full(DataPlaneError):
    """No room within the deadline. The message says what holds the room, and which key raises it."""

    kind = FaultKind.INFRA


class BadRequest(DataPlaneError):
    """The call itself is wrong: an unknown partition, another owner's lease."""

    kind = FaultKind.INTERNAL
