"""What the store answers with: frozen records, detached from any database. Times are epoch seconds, UTC."""

from pydantic import BaseModel, ConfigDict, JsonValue

from ratchet.spec.faults import Fault
from ratchet.spec.state import RunPhase


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)


class RunRecord(_Record):
    """A run and its head."""

    id: str
    recipe: str
    spec: dict[str, JsonValue]
    """The run spec as it was launched, in its JSON form: an old one may not parse any more."""
    spec_digest: str
    """sha256 of the spec's JSON form, as hex."""
    seed: int
    max_num_steps: int
    """As it is now: a run can be extended."""
    code: dict[str, JsonValue]
    """What ran it: versions by package, and `revision` where it came from a git checkout."""
    inputs: dict[str, JsonValue] | None
    """What it trains on: see `provenance.input_digests`. None: not recorded."""
    created_at: float
    workflow_run_id: str

    incarnation: int
    """The newest one."""
    phase: RunPhase
    phase_at: float | None
    """Since when; None until the newest incarnation has said its phase."""
    step: int
    """Optimizer steps done on the path to the head; goes back when an incarnation restores."""
    step_at: float | None
    """Since when; None until the newest incarnation has said its step."""
    fault: Fault | None
    updated_at: float
    ended_at: float | None


class IncarnationRecord(_Record):
    """One life of a run; everything about its weights is None until they are restored."""

    run: str
    number: int
    opened_at: float
    restored_at: float | None
    restored_step: int | None
    restored_digest: str | None
    from_checkpoint: str | None
    """Path of the checkpoint it grew from; None: the base model."""
    model_digest: str | None
    num_parameters: int | None
    parent_run: str | None
    """The run that made that checkpoint: this one, or the one it was forked from."""
    parent_incarnation: int | None
    """The incarnation of it that made that checkpoint."""


class StepRecord(_Record):
    """One optimizer step of one incarnation. A measurement is None if it is missing or not finite."""

    run: str
    incarnation: int
    step: int
    version_digest: str
    """Of the weights after the step."""
    started_at: float
    finished_at: float

    cursor_start: int
    cursor_end: int
    num_groups: int
    num_samples: int
    num_tokens: int
    """Generated tokens, replayed ones included."""
    replayed_groups: int
    zero_advantage_groups: int
    samples_generated: int
    """The generators' counter over the session, after the rollout."""
    optimizer_steps: int
    """The trainer's counter over the session, after the step."""

    reward_mean: float | None
    reward_std: float | None
    accuracy: float | None
    length_mean: float | None
    truncated_fraction: float | None
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    logprob_error: float | None
    kl: float | None
    metrics: dict[str, float]
    """Everything the trainer measured, by name; what was not finite is left out."""

    rollout_engine_s: float
    rollout_submits: int
    rollout_starts: int
    train_engine_s: float
    train_submits: int
    train_starts: int
    refit_engine_s: float
    refit_submits: int
    refit_starts: int
    refit_bytes: int
    wire_digest: str

    rollout_incarnation: int | None
    rollout_step: int | None
    rollout_digest: str | None
    """The weight version that answered the prompts. Groups from the journal may be of an older one."""
    dropped: list[int] | None
    """Cursor positions that were given up; None: recorded before this was kept."""


class CheckpointRecord(_Record):
    """A committed checkpoint."""

    run: str
    incarnation: int
    step: int
    version_digest: str
    cursor: int
    path: str
    digest: str
    manifest_digest: str
    num_bytes: int
    num_files: int
    write_s: float
    submits: int
    starts: int
    committed_at: float


class EvaluationRecord(_Record):
    """Accuracy of one weight version on the held-out problems."""

    run: str
    incarnation: int
    step: int
    version_digest: str
    num_problems: int
    accuracy: float | None
    reward_mean: float | None
    length_mean: float | None
    engine_s: float
    submits: int
    starts: int
    evaluated_at: float


class EventRecord(_Record):
    """Something people want to know later."""

    id: int
    """Rises with every event of a run."""
    run: str
    incarnation: int
    key: str
    topic: str
    message: str
    data: dict[str, JsonValue]
    at: float


class Glance(_Record):
    """What one look at a run shows beside the run itself; all of the path to its head."""

    last_step: StepRecord | None
    last_checkpoint: CheckpointRecord | None
    evaluations: list[EvaluationRecord]
    """By step."""
    events: list[EventRecord]
    """The newest few of one topic, oldest first."""


STEP_MEASUREMENTS = {
    "reward_mean": "reward_mean",
    "reward_std": "reward_std",
    "accuracy": "accuracy",
    "length_mean": "length_mean",
    "truncated_fraction": "truncated_fraction",
    "num_tokens": "num_tokens",
    "replayed_groups": "replayed_groups",
    "zero_advantage_groups": "zero_advantage_groups",
    "rollout_s": "rollout_engine_s",
    "train_s": "train_engine_s",
    "refit_s": "refit_engine_s",
}
"""What is measured of every step, as the API and metric sinks name it, and its columns. The trainer's own
metrics come beside them."""
