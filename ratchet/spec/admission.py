"""Admission: how many runs may have a session at a time, and who waits behind whom."""

import os
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.spec.faults import SpecError
from ratchet.spec.home import Home
from ratchet.spec.run_spec import Positive

MAX_SESSIONS_VARIABLE = "RATCHET_MAX_SESSIONS"
UNLIMITED = "unlimited"

NAMED = 5
"""So many runs are named; of the others it is said how many they are."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Place(_Model):
    """Where a run stands in the queue for a session."""

    ahead: tuple[str, ...]
    """The first NAMED of the runs that get a session before it, in their order."""
    num_ahead: int
    holders: tuple[str, ...]
    """The first NAMED of the runs that have a session, the oldest holder first."""
    num_holders: int
    priority: int
    since: float
    """Epoch seconds."""

    def __str__(self) -> str:
        """`queued behind 3 runs: a, b, c (priority 0)`. Who is next waits for those that have a session."""
        if self.num_ahead:
            behind = _listed(self.num_ahead, "run", self.ahead)
        elif self.num_holders:
            has = "has" if self.num_holders == 1 else "have"
            sessions = "the session" if self.num_holders == 1 else "the sessions"
            behind = f"{_listed(self.num_holders, 'run', self.holders)}, which {has} {sessions}"
        else:
            behind = "nobody: its session is about to be opened"
        return f"queued behind {behind} (priority {self.priority})"


class AdmitRequest(_Model):
    """A run asks for a session. Asked again by the same workflow, it keeps its place."""

    run: str
    execution: str
    """The first execution of its workflow: the same over continue-as-new and reset."""
    priority: int
    since: float
    """When it began to want one: workflow time, epoch seconds."""
    waits: bool = False
    """Answered once it is admitted; else at once."""
    holds: bool = False
    """It has a session, and the store has lost sight of that: it is admitted whatever the limit is."""


class AdmitAnswer(_Model):
    place: Place | None = None
    """Where it stands in the queue; None: it is admitted, unless it is forgotten."""
    forgotten: bool = False
    """It waited in a place that is not there any more, and has to ask again."""


class ReleaseRequest(_Model):
    """A run has no session, and wants none."""

    run: str
    execution: str


class Limit(_Model):
    """How many runs may have a session at a time."""

    max_sessions: Positive | None = None
    """None: any number."""

    def __str__(self) -> str:
        return UNLIMITED if self.max_sessions is None else str(self.max_sessions)

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """From `4` or `unlimited`. Raises SpecError, naming `source`."""
        if text == UNLIMITED:
            return cls()
        try:
            return cls.model_validate({"max_sessions": text})
        except ValidationError:
            raise SpecError(f"{source} is {text!r}: give a number from 1 on, or {UNLIMITED}") from None

    @classmethod
    def of(cls, home: Home) -> Self:
        """RATCHET_MAX_SESSIONS; without it what `ratchet up --max-sessions` was told last in this folder.
        Raises SpecError."""
        if text := os.environ.get(MAX_SESSIONS_VARIABLE):
            return cls.parse(text, MAX_SESSIONS_VARIABLE)
        try:
            return cls.parse(home.max_sessions_file.read_text().strip(), str(home.max_sessions_file))
        except FileNotFoundError:
            return cls()


def _listed(count: int, what: str, names: tuple[str, ...]) -> str:
    """`3 runs: a, b, c`; `7 runs: a, b, c, d, e and 2 more`."""
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{count} {what}{'s' if count > 1 else ''}: {', '.join(names)}{more}"
