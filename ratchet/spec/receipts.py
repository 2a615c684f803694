"""What an operation leaves behind: small typed results. Ids, digests, counts, metrics; never tensors."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ratchet.spec.ids import WeightVersion
from ratchet.spec.ranges import Ranges


class Recovered(BaseModel):
    """A part that was lost and replaced while an operation went on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str
    """generator, data-plane."""
    cause: str
    detected_at: float
    """Seconds since the epoch."""
    seconds: float
    """From noticing the loss to the part being usable again."""


class Receipt(BaseModel):
    """Common part. `submits` and `starts` are counted by the conductor: how often the operation was
    asked for, and how often it really began (1, however many retries joined it)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    op: str
    submits: int = 1
    starts: int = 1
    queued_s: float = 0.0
    """Seconds it waited for its lane."""
    engine_s: float = 0.0
    """Seconds spent inside engines (trainer, generator): the rest of a step is overhead."""
    recovered: tuple[Recovered, ...] = ()
    """What was lost on the way, and replaced without the run having to go back."""


class RestoreReceipt(Receipt):
    kind: Literal["restore"] = "restore"
    version: WeightVersion
    checkpoint: str | None
    """Path of the checkpoint the weights came from; None: the base model."""
    parent: WeightVersion | None = None
    """The version that checkpoint was made of: where this incarnation grew from."""
    finished: Ranges = ()
    """Positions above the checkpoint's cursor that whoever made it was done with."""
    num_parameters: int
    model_digest: str
    """Digest of the base model, whatever the weights came from."""


class RolloutReceipt(Receipt):
    kind: Literal["rollout_batch"] = "rollout_batch"
    cursor_start: int
    cursor_end: int
    num_groups: int
    num_samples: int
    replayed_groups: int
    """Groups that were already in the journal and were not generated again."""
    dropped: tuple[int, ...] = ()
    """Cursor positions that were given up: nothing of them is trained."""
    num_tokens: int
    """Generated tokens of the batch, replayed ones included."""
    reward_mean: float
    reward_std: float
    accuracy: float
    length_mean: float
    truncated_fraction: float
    samples_generated: int
    """The generators' training-sample counter, over the whole session, after this batch."""
    inflight_s: float = 0.0
    """Seconds that its groups were being made, summed over them; 0 where they are not made one by one."""
    version: WeightVersion


class TrainReceipt(Receipt):
    kind: Literal["train_step"] = "train_step"
    version: WeightVersion
    cursor_start: int
    cursor_end: int
    num_groups: int
    zero_advantage_groups: int
    """Groups without a gradient, skipped in forward and backward (kept in every denominator)."""
    num_tokens: int
    """Response tokens of the whole batch: the denominator of the token-level loss."""
    optimizer_steps: int
    """The trainer's optimizer-step counter, over the whole session, after this step."""
    trained: Ranges = ()
    """Of a step that took its groups as they were finished: their positions,"""
    evicted: Ranges = ()
    """those that were thrown away as too old,"""
    given_up: Ranges = ()
    """and those whose prompts were given up, as far as that was known."""
    batch: RolloutReceipt | None = None
    """Such a step's groups, told as if one rollout had made them."""
    metrics: dict[str, float]
    """loss, grad_norm, learning_rate, reward_mean, kl, ratio_mean, clip_fraction,
    logprob_error (mean |generation - training logprob|), entropy, …"""


class RefitReceipt(Receipt):
    kind: Literal["refit"] = "refit"
    version: WeightVersion
    mover: str
    num_tensors: int
    num_bytes: int
    wire_digest: str
    """xxh3-128 of the bytes as the generator read them, equal to the trainer's."""
    wire_bytes: int = 0
    """What travelled: nothing through shared memory, less than `num_bytes` with patches."""
    metrics: dict[str, float] = {}
    """What the generator did since the refit before, where rollouts stream: `rollout_idle` (share of its
    permits that nothing was in flight for), `generation_busy` (share of the time in which it sampled),
    `aborted_groups` (let go of while they were sampled), `environment_retries`."""


class SnapshotReceipt(Receipt):
    kind: Literal["snapshot"] = "snapshot"
    version: WeightVersion
    num_bytes: int


class CheckpointReceipt(Receipt):
    kind: Literal["commit_checkpoint"] = "commit_checkpoint"
    version: WeightVersion
    path: str
    """Folder of the checkpoint, as the artifact store names it."""
    digest: str
    """sha256 over the sorted (name, dtype, shape, bytes) of the state: no paths, times or ids."""
    manifest_digest: str
    num_bytes: int
    num_files: int
    write_s: float


class EvaluateReceipt(Receipt):
    kind: Literal["evaluate"] = "evaluate"
    version: WeightVersion
    num_problems: int
    accuracy: float
    reward_mean: float
    length_mean: float


AnyReceipt = Annotated[
    RestoreReceipt
    | RolloutReceipt
    | TrainReceipt
    | RefitReceipt
    | SnapshotReceipt
    | CheckpointReceipt
    | EvaluateReceipt,
    Field(discriminator="kind"),
]

_ANY: TypeAdapter[AnyReceipt] = TypeAdapter(AnyReceipt)


def parse_receipt(data: object) -> AnyReceipt:
    """A receipt from its JSON form (a dict). Raises pydantic.ValidationError."""
    return _ANY.validate_python(data)
