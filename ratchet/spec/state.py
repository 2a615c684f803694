"""What RunWorkflow carries from one execution to the next, and what it answers to a status query."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from ratchet.spec.faults import Fault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.operations import AnyArgs
from ratchet.spec.run_spec import RunSpec


class RunPhase(StrEnum):
    """State of a run, as people see it. The last three are final."""

    STARTING = "starting"
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


class RunState(BaseModel):
    """Everything the loop needs at a step boundary; survives continue-as-new. Small."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = 2
    run: str
    phase: RunPhase = RunPhase.STARTING
    incarnation: int = 1
    session: int = 1
    """The incarnation that opened the session."""
    session_open: bool = False
    step: int = 0
    """Optimizer steps done on the path to the head."""
    cursor: int = 0
    """Next undrawn cursor position."""
    head: WeightVersion | None = None
    refitted: WeightVersion | None = None
    """What the generators hold."""
    open_operations: list[AnyArgs] = []
    """Operations in flight at the boundary, with their arguments: the next execution joins them."""
    last_checkpoint: CheckpointRef | None = None
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
    hyperparameters: list[HyperparameterChange] = []
    """In the order they were asked for."""
    checkpoint_requested: bool = False
    applied_updates: list[str] = []
    """Ids of updates already applied: Temporal accepts an id again after continue-as-new."""


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


class RunResult(BaseModel):
    """Result of a RunWorkflow that ended `completed` or `stopped`."""

    model_config = ConfigDict(extra="forbid")

    run: str
    phase: RunPhase
    step: int
    checkpoint: CheckpointRef | None
