"""Arguments of control and cluster activities: what is written into the store, and sessions."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ratchet.spec.faults import Fault
from ratchet.spec.receipts import (
    CheckpointReceipt,
    EvaluateReceipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    TrainReceipt,
)
from ratchet.spec.run_spec import Positive, RunSpec
from ratchet.spec.state import CheckpointRef, RunPhase


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RegisterRun(_Model):
    """First control activity of a run: its row, and its first incarnation."""

    run: str
    spec: RunSpec
    workflow_run_id: str
    incarnation: int


class StateEntry(_Model):
    """The run changed its state."""

    kind: Literal["state"] = "state"
    phase: RunPhase
    step: int
    fault: Fault | None = None


class IncarnationEntry(_Model):
    """An incarnation restored its weights and is live."""

    kind: Literal["incarnation"] = "incarnation"
    receipt: RestoreReceipt


class StepEntry(_Model):
    """One optimizer step, with everything that led to it."""

    kind: Literal["step"] = "step"
    step: int
    started_at: float
    """Workflow time, seconds since the epoch."""
    finished_at: float
    rollout: RolloutReceipt
    train: TrainReceipt
    refit: RefitReceipt


class CheckpointEntry(_Model):
    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    cursor: int
    receipt: CheckpointReceipt


class EvaluationEntry(_Model):
    kind: Literal["evaluation"] = "evaluation"
    step: int
    receipt: EvaluateReceipt


class EventEntry(_Model):
    """Something people want to know later: an update applied, a worker replaced."""

    kind: Literal["event"] = "event"
    key: str
    """Makes the row idempotent: unique within (run, incarnation)."""
    topic: str
    message: str
    data: dict[str, JsonValue] = {}


AnyEntry = Annotated[
    StateEntry | IncarnationEntry | StepEntry | CheckpointEntry | EvaluationEntry | EventEntry,
    Field(discriminator="kind"),
]


class RecordRequest(_Model):
    """Rows for the store. Recording twice writes once."""

    run: str
    incarnation: int
    at: float
    """Workflow time, seconds since the epoch: the same on a retry."""
    entries: tuple[AnyEntry, ...]


class ChooseCheckpoint(_Model):
    """Where a run can go back to. Answered from the artifacts, never from the store or the history."""

    run: str
    avoid: tuple[str, ...] = ()
    """Checkpoint folders that were found damaged."""


class RestorePoint(_Model):
    """The newest committed checkpoint, and how far incarnations have come."""

    checkpoint: CheckpointRef | None
    """None: start from the base model."""
    step: int
    highest_incarnation: int
    """Over checkpoints and journal, committed or not: a new incarnation must be above it."""
    passed_over: tuple[str, ...] = ()
    """One line for every newer checkpoint that cannot be used."""


class RetainRequest(_Model):
    """Delete checkpoints and journal segments that the run's retention does not keep."""

    run: str
    spec: RunSpec
    in_use: tuple[str, ...]
    """Checkpoint folders that must stay, whatever the policy says."""


class RetainAnswer(_Model):
    deleted: tuple[str, ...]
    """Checkpoint folders that are gone."""
    num_bytes: int


class DiagnoseRequest(_Model):
    """Who is silent? Answered from what Temporal knows of the workflow's own activities."""

    run: str


class Silent(_Model):
    """A party that a run waits for."""

    role: str
    detail: str
    """What it owes, since when, and what was heard of it last."""


class Diagnosis(_Model):
    progressed_at: float
    """When an open operation last said something new ("7 of 12 groups"), epoch seconds; 0: never."""
    silent: tuple[Silent, ...]


class ExtendRequest(_Model):
    """Train to another last step."""

    max_num_steps: Positive


class HyperparametersRequest(_Model):
    """New values of spec keys, from the next step on."""

    values: dict[str, float]


class SessionRequest(_Model):
    """open_session, probe, restart_worker, close_session."""

    run: str
    session: int
    spec: RunSpec


class SessionInfo(_Model):
    run: str
    session: int
    queue: str
    cluster_lost: str | None = None
    """How the Ray cluster that this session had ended, if it has another one since it was opened last."""


class ProbeAnswer(_Model):
    """What the supervisor sees of a session, part by part."""

    head: bool
    """The Ray head answers."""
    worker: bool
    """The session worker process lives."""
    detail: str = ""


class CancelRequest(_Model):
    """Cancel an operation; finished work of it stays."""

    op: str
