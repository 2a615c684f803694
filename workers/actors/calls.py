"""Calling Ray actors: every call bounded in time, every failure named."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from ratchet.spec.faults import ActorLost, ClusterLost, InfraFault, RatchetError, Unavailable


def named(error: BaseException, role: str, lost: type[RatchetError] = ActorLost) -> RatchetError:
    """The RatchetError behind a Ray exception; `lost` for an actor that is gone."""
    # First, since Ray raises a class that is both: the cause's type, with a traceback for a message.
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, RatchetError):
            cause.role = cause.role or role
            return cause
        if isinstance(cause, MemoryError):
            return InfraFault(f"the {role} ran out of memory: {cause}", role=role)
        return RatchetError(f"{type(cause).__name__}: {cause}", role=role)
    if isinstance(error, RatchetError):
        return error
    if isinstance(error, (RayActorError, OutOfMemoryError)):  # Ray kills actors when memory runs out
        return lost(f"the {role} actor is gone: {_essence(error)}", role=role)
    if isinstance(error, (GetTimeoutError, TimeoutError)):
        return Unavailable(f"the {role} did not answer in time", role=role)
    if isinstance(error, RayError):
        return ClusterLost(f"Ray failed under the {role}: {_essence(error)}", role=role)
    return RatchetError(f"{type(error).__name__}: {error}", role=role)


def _essence(error: RayError) -> str:
    """One line of Ray's many: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback" in str(error) else lines[0]


async def ask(ref: Awaitable[Any], role: str, deadline: float) -> Any:
    """Await an object reference, at most `deadline` seconds. Raises a RatchetError."""
    try:
        return await asyncio.wait_for(_awaited(ref), deadline)
    except Exception as error:
        raise named(error, role) from error


async def _awaited(ref: Awaitable[Any]) -> Any:
    return await ref


def ask_blocking(ref: Any, role: str, deadline: float, *, lost: type[RatchetError] = ActorLost) -> Any:
    """The same from a synchronous actor."""
    try:
        return ray.get(ref, timeout=deadline)
    except Exception as error:
        raise named(error, role, lost) from error
