"""What RunWorkflow carries from one execution to the next, and what it answers to a status query."""

from enum import StrEnum
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, model_validator

from ratchet.spec.faults import Fault, Incident, SpecError
from ratchet.spec.ids import WeightVersion
from ratchet.spec.operations import AnyArgs, CommitArgs, RolloutArgs
from ratchet.spec.ranges import Ranges
from ratchet.spec.run_spec import RunSpec


class RunPhase(StrEnum):
    """State of a run, as people see it. The last three are final."""

    STARTING = "starting"
    QUEUED = "queued"
    """As many runs as may have a session have one: this one waits for its turn."""
    RUNNING = "running"
    RECOVERING = "recovering"
    """Something was lost: the run goes back to its newest checkpoint, by itself."""
    STALLED = "stalled"
    """Nothing was committed for `runtime.stalled_after_s`; the newest incident names who is silent."""
    PAUSED = "paused"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (RunPhase.COMPLETED, RunPhase.STOPPED, RunPhase.FAILED)


class Slot(StrEnum):
    """What a run has of the installation's `max_sessions`."""

    NONE = "none"
    """Nothing: it has no session, and none was ever asked for."""
    HELD = "held"
    EXEMPT = "exempt"
    """It began before there was admission, and is not counted until it is resumed."""


class CheckpointRef(BaseModel):
    """A committed checkpoint."""

    model_config = ConfigDict(extra="forbid")

    path: str
    digest: str
    version: WeightVersion
    cursor: int


class ForkOrigin(BaseModel):
    """The checkpoint of another run that a fork starts from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    checkpoint: CheckpointRef


class HyperparameterChange(BaseModel):
    """Values of spec keys from a step on; kept for the whole run, since a recovery re-trains older steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_step: int
    values: dict[str, float]


SCHEMA_VERSION = 3
"""Of RunState. 1: before runs could recover. 2: before they were admitted. What came since has a default."""
ADMITTED_SINCE = 3


class RunState(BaseModel):
    """Everything the loop needs at a step boundary; survives continue-as-new. Small."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    run: str
    phase: RunPhase = RunPhase.STARTING
    incarnation: int = 1
    session: int = 1
    """The incarnation that opened the session."""
    session_open: bool = False
    slot: Slot = Slot.NONE
    step: int = 0
    """Optimizer steps done on the path to the head."""
    cursor: int = 0
    """Next undrawn cursor position; in a run that takes groups as they are finished, the lowest one that it
    is not done with."""
    finished: Ranges = ()
    """Positions above the cursor that it is done with."""
    drawn: int = 0
    """Next undrawn cursor position of such a run."""
    batches: int = 0
    """Batches of prompts that were drawn, counted from the step that the incarnation began at."""
    head: WeightVersion | None = None
    refitted: WeightVersion | None = None
    """What the generators hold."""
    ahead: list[RolloutArgs] = []
    """Of an asynchronous run: batches that were opened and are not trained."""
    open_operations: list[AnyArgs] = []
    """Operations in flight at the boundary, with their arguments: the next execution joins them."""
    last_checkpoint: CheckpointRef | None = None
    not_stored: CommitArgs | None = None
    """The newest checkpoint, if it could not be stored: it is tried again with the very same arguments."""
    evaluated_at_start: bool = False
    paused: bool = False
    stop_requested: bool = False
    stop_reason: str = ""
    must_restore: bool = False
    """Start from the newest committed checkpoint in the artifacts, whatever this state says."""
    cause: Fault | None = None
    """What the recovery that is going on recovers from."""
    recoveries: int = 0
    """Recoveries in a row without a step being trained in between."""
    avoid: list[str] = []
    """Checkpoint folders found damaged."""
    forked_from: ForkOrigin | None = None
    restored_from: str | None = None
    """Folder of the checkpoint that this incarnation grew from."""
    incident: Incident | None = None
    """The newest one, over or not."""
    begun: int = 0
    """The highest step that was ever asked to be trained: a change of hyperparameters comes after it."""
    hyperparameters: list[HyperparameterChange] = []
    """In the order they were asked for."""
    checkpoint_requested: bool = False
    applied_updates: list[str] = []
    """Ids of updates already applied: Temporal accepts an id again after continue-as-new."""

    @model_validator(mode="before")
    @classmethod
    def _of_this_schema(cls, data: Any) -> Any:
        """Bring an older state to this schema. Raises SpecError for a newer one."""
        if not isinstance(data, dict):
            return data
        state = cast(dict[str, Any], data)
        version, run = state.get("schema_version", SCHEMA_VERSION), state.get("run")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise SpecError(
                f"the state of run {run} has schema version {version}, and this Ratchet reads "
                f"{SCHEMA_VERSION}: upgrade its control workers, then `ratchet run resume {run}`"
            )
        if isinstance(version, int) and version < ADMITTED_SINCE:
            state = {**state, "slot": Slot.EXEMPT}
        return {**state, "schema_version": SCHEMA_VERSION}


class RunInput(BaseModel):
    """Input of RunWorkflow."""

    model_config = ConfigDict(extra="forbid")

    spec: RunSpec
    state: RunState


class RunStatus(BaseModel):
    """Answer of the status query and of the updates."""

    model_config = ConfigDict(extra="forbid")

    run: str
    phase: RunPhase
    incarnation: int
    step: int
    max_num_steps: int
    doing: list[str]
    """Open operations, in words."""
    paused: bool
    stop_requested: bool
    head: WeightVersion | None
    last_checkpoint: CheckpointRef | None
    incident: str | None = None
    """The newest one, in a line."""


class RunResult(BaseModel):
    """Result of a RunWorkflow that ended `completed` or `stopped`."""

    model_config = ConfigDict(extra="forbid")

    run: str
    phase: RunPhase
    step: int
    checkpoint: CheckpointRef | None
