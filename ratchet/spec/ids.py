"""Names of things: operations, weight versions, actors, queues."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict


class OpKind(StrEnum):
    """What an operation does; the last part of its id."""

    RESTORE = "restore"
    ROLLOUT_BATCH = "rollout_batch"
    TRAIN_STEP = "train_step"
    REFIT = "refit"
    SNAPSHOT = "snapshot"
    COMMIT_CHECKPOINT = "commit_checkpoint"
    EVALUATE = "evaluate"


class OpId(BaseModel):
    """Identity of one engine action: the same id is the same action, whoever asks and however often."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    incarnation: int
    step: int
    kind: OpKind

    def __str__(self) -> str:
        return f"{self.run}/{self.incarnation}/{self.step}/{self.kind.value}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form that `str()` writes. Raises ValueError on anything else."""
        parts = text.split("/")
        if len(parts) != 4:
            raise ValueError(f"not an operation id (run/incarnation/step/kind): {text!r}")
        run, incarnation, step, kind = parts
        return cls(run=run, incarnation=int(incarnation), step=int(step), kind=OpKind(kind))


class WeightVersion(BaseModel):
    """The policy after a step. `digest` is xxh3-128 over its sorted (name, dtype, shape, bytes)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    incarnation: int
    step: int
    digest: str

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.step}.{self.digest[:8]}"


CONTROL_QUEUE = "ratchet-control"
"""Workflows and light activities; any number of workers poll it."""

CLUSTER_QUEUE = "ratchet-cluster"
"""Polled by the supervisor, which owns Ray heads and session workers."""

RAY_NAMESPACE = "ratchet"
"""Every named actor of every run lives in this Ray namespace."""


def session_queue(run: str, session: int) -> str:
    """The task queue of a session; `session` is the incarnation that opened it."""
    return f"ratchet-session-{run}-{session}"


def actor_name(role: str, run: str, session: int, rank: int = 0) -> str:
    """The name of a detached actor: stable over incarnations within one session."""
    return f"{role}-{run}-{session}-{rank}"
