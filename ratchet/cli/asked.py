"""What the command line says of the API that is meant. Light: help must not wait for more."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    url: str | None = None
    token: str | None = None
    profile: str | None = None


NOTHING = Asked()

ASKED: ContextVar[Asked] = ContextVar("asked", default=NOTHING)
