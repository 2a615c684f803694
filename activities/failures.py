"""How activities of the control queue fail: with the fault's name, and whether another attempt may help."""

from collections.abc import Generator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from ratchet.spec.faults import FaultKind, RatchetError

RETRYABLE = frozenset({FaultKind.UNAVAILABLE, FaultKind.STORAGE})
"""A store that is away may come back, and so may a folder; anything else stays as it is."""


@contextmanager
def named_failures() -> Generator[None, None, None]:
    """Raise what Ratchet raises as Temporal's ApplicationError."""
    try:
        yield
    except RatchetError as error:
        retry = error.kind in RETRYABLE
        raise ApplicationError(str(error), type=error.kind.value, non_retryable=not retry) from error
