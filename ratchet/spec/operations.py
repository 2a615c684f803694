"""Arguments of operations, one model each. Together with the OpId they say everything an engine is told;
the same OpId with other arguments is a Conflict."""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, TypeAdapter

from ratchet.spec.faults import Fault
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.ranges import Ranges
from ratchet.spec.receipts import AnyReceipt


class _Args(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    op: OpId

    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class RestoreArgs(_Args):
    """Put the trainer at the head of the run, and let the generators build their model."""

    kind: Literal[OpKind.RESTORE] = OpKind.RESTORE
    checkpoint: str | None = None
    """Checkpoint folder; None: the base model of the spec."""
    checkpoint_run: str | None = None
    """The run that checkpoint belongs to, if not this one: a fork starts from its parent's."""


class RolloutArgs(_Args):
    """Draw the cursor positions [cursor_start, cursor_end) and finish a prompt group for each.

    `live`: by whatever weights the generators hold by then; `version` are those they held when it was asked
    for. Else by `version`, and no other.
    """

    kind: Literal[OpKind.ROLLOUT_BATCH] = OpKind.ROLLOUT_BATCH
    cursor_start: int
    cursor_end: int
    version: WeightVersion
    live: bool = False
    finished: Ranges = ()
    """Positions that are not to be drawn: an earlier life of the run is done with them."""


class TrainArgs(_Args):
    """One optimizer step over the groups of [cursor_start, cursor_end).

    `wanted`: over so many of the groups from `cursor_start` on, taken in as they are finished, by the sampler
    of the spec.
    """

    kind: Literal[OpKind.TRAIN_STEP] = OpKind.TRAIN_STEP
    cursor_start: int
    cursor_end: int
    version: WeightVersion
    """The version the step starts from; the trainer refuses any other."""
    dropped: tuple[int, ...] = ()
    """Cursor positions whose prompts were given up in the rollout."""
    hyperparameters: dict[str, float] = {}
    """Dotted keys of the run spec that have another value from this step on (`set_hyperparameters`)."""
    wanted: int = 0
    finished: Ranges = ()
    """Positions from `cursor_start` on that the run is done with."""
    max_staleness: int = 0
    """Steps by which the weights that sampled a group may be older than `version`, as planned."""


class RefitArgs(_Args):
    """Move `version` from the trainer to every generator."""

    kind: Literal[OpKind.REFIT] = OpKind.REFIT
    version: WeightVersion


class SnapshotArgs(_Args):
    """Copy model, optimizer, scheduler, RNG and ledger at a step boundary."""

    kind: Literal[OpKind.SNAPSHOT] = OpKind.SNAPSHOT
    version: WeightVersion
    cursor: int
    finished: Ranges = ()


class CommitArgs(_Args):
    """Write the snapshot of the same (incarnation, step); its manifest is the commit."""

    kind: Literal[OpKind.COMMIT_CHECKPOINT] = OpKind.COMMIT_CHECKPOINT
    version: WeightVersion
    cursor: int
    finished: Ranges = ()
    """Positions above the cursor that the run is done with."""
    hf_export: bool
    """Also write `hf/`, for `from_pretrained`."""


class EvaluateArgs(_Args):
    """Greedy answers to the first `num_problems` held-out problems."""

    kind: Literal[OpKind.EVALUATE] = OpKind.EVALUATE
    version: WeightVersion
    num_problems: int


AnyArgs = Annotated[
    RestoreArgs | RolloutArgs | TrainArgs | RefitArgs | SnapshotArgs | CommitArgs | EvaluateArgs,
    Field(discriminator="kind"),
]

_ANY: TypeAdapter[AnyArgs] = TypeAdapter(AnyArgs)


def parse_args(data: object) -> AnyArgs:
    """Arguments from their JSON form (a dict). Raises pydantic.ValidationError."""
    return _ANY.validate_python(data)


class OpState(StrEnum):
    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    POISONED = "poisoned"


class OpAnswer(BaseModel):
    """What the conductor says about an operation, to submit, poll and cancel alike."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    op: str
    state: OpState
    submits: int = 0
    starts: int = 0
    progress: str = ""
    """A few words for people ("7 of 12 groups"); heartbeat details and the status query carry it."""
    receipt: SerializeAsAny[AnyReceipt] | None = None
    fault: Fault | None = None

    @property
    def ended(self) -> bool:
        return self.state in (OpState.DONE, OpState.FAILED, OpState.POISONED)
