"""What RunWorkflow carries from one execution to the next, and what it answers to a status query."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from ratchet.spec.ids import WeightVersion
from ratchet.spec.operations import AnyArgs
from ratchet.spec.run_spec import RunSpec


class RunPhase(StrEnum):
    """State of a run, as people see it. The last three are final."""

    STARTING = "starting"
    RUNNING = "running"
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


class RunState(BaseModel):
    """Everything the loop needs at a step boundary; survives continue-as-new. Small."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = 1
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
