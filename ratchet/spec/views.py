"""What the API answers and its clients read: one shape on both ends of the wire."""

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema

from ratchet.spec.faults import Fault
from ratchet.spec.problems import SpecProblem
from ratchet.spec.state import RunPhase

RUN_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,59}$"


def _checked_id(text: str) -> str:
    if not re.fullmatch(RUN_ID_PATTERN, text):
        raise ValueError("lower-case letters, digits and dashes, 60 at most, the first one no dash")
    return text


RunIdText = Annotated[
    str, AfterValidator(_checked_id), WithJsonSchema({"type": "string", "pattern": RUN_ID_PATTERN})
]
"""Run ids name folders, queues and actors."""

_RUN_ID = "tiny-addition-3fa2c1"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015"


class _View(BaseModel):
    # Clients may be older or newer than the server: what they do not know, they do not read.
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class LaunchRequest(BaseModel):
    """A run to launch."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {
                    "run_id": _RUN_ID,
                    "spec": {
                        "name": "tiny-addition",
                        "policy": {"model": "tiny"},
                        "generation": {"max_new_tokens": 5},
                        "grpo": {
                            "num_prompts_per_step": 16,
                            "num_generations_per_prompt": 8,
                            "max_num_steps": 40,
                        },
                        "environment": {"name": "arithmetic"},
                    },
                }
            ]
        },
    )

    spec: dict[str, Any]
    """The run spec, as in a recipe file."""
    run_id: RunIdText | None = None
    """The run's id; left out: the spec's name and six random hex digits."""


class ForkRequest(BaseModel):
    """A run to start from a checkpoint of another one."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [{"at": 20, "overrides": ["policy.optimizer.lr=1e-6"]}]},
    )

    at: Annotated[int, Field(ge=1)]
    """The step whose checkpoint it starts from: one on the path to the head."""
    overrides: list[str] = []
    """Keys of the parent's spec that are to be different, like `policy.optimizer.lr=1e-6`."""
    run_id: RunIdText | None = None
    """The new run's id; left out: the spec's name and six random hex digits."""


class StepView(_View):
    """One optimizer step on the path to the run's head."""

    step: int = Field(examples=[12])
    incarnation: int = Field(examples=[1])
    version: str = Field(examples=["1.12.9f86d081"])
    """Incarnation, step and the first digits of the weights' digest."""
    started_at: datetime
    finished_at: datetime
    reward_mean: float | None = Field(examples=[0.61])
    """Like every measurement: null if it is missing or not finite."""
    accuracy: float | None = Field(examples=[0.61])
    """Share of the step's samples that were right."""
    length_mean: float | None = Field(examples=[3.4])
    """Mean response length, in tokens."""
    num_tokens: int = Field(examples=[435])
    """Generated tokens."""
    num_groups: int = Field(examples=[16])
    replayed_groups: int = 0
    """Groups that came from the journal and were not generated again."""
    retrained: bool = False
    """An older incarnation had trained this step too, and what it learned there was lost."""
    zero_advantage_groups: int = Field(examples=[3])
    """Groups whose samples all earned the same, so that nothing was to be learned from them."""
    rollout_s: float = Field(examples=[1.9])
    """Engine seconds of generation and scoring."""
    train_s: float = Field(examples=[1.1])
    refit_s: float = Field(examples=[0.1])
    metrics: dict[str, float] = Field(examples=[{"loss": 0.01, "grad_norm": 0.4, "logprob_error": 1e-6}])
    """The trainer's: loss, grad_norm, learning_rate, kl, ratio_mean, clip_fraction, logprob_error, …"""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per engine second of the rollout."""
        return self.num_tokens / self.rollout_s if self.rollout_s > 0 else 0.0


class EvaluationView(_View):
    """Greedy answers to held-out problems."""

    step: int = Field(examples=[0])
    incarnation: int = Field(examples=[1])
    accuracy: float | None = Field(examples=[0.42])
    reward_mean: float | None = Field(examples=[0.42])
    num_problems: int = Field(examples=[256])
    on_path: bool = True
    """It is of weights that led to the run's head."""


class CheckpointView(_View):
    """A committed checkpoint."""

    step: int = Field(examples=[40])
    incarnation: int = Field(examples=[1])
    path: str = Field(examples=[f"/home/ada/.ratchet/artifacts/runs/{_RUN_ID}/checkpoints/1-40"])
    digest: str = Field(examples=[_DIGEST])
    num_bytes: int = Field(examples=[7_340_032])
    on_path: bool = True
    """It led to the run's head. Retention may have deleted its files."""


class IncidentView(_View):
    """Something that was lost, or that fell silent, and what was done about it."""

    key: str = Field(examples=["recovery/2"])
    """Unique within the run and its incarnation."""
    incarnation: int = Field(examples=[2])
    at: datetime
    """When it was noticed."""
    lost: str = Field(examples=["trainer"])
    """What was lost, or is silent."""
    cause: str = Field(examples=["actor trainer-tiny-addition-3fa2c1-1-0 is dead"])
    done: str = Field(examples=["restored step 20 as incarnation 2"])
    """What was done about it, or is being done."""
    seconds: float | None = Field(default=None, examples=[21.4])
    """From noticing it to going on; null while that has not come."""


class QueueView(_View):
    """Where a run waits for a session, since there are as many as `ratchet up --max-sessions` allows."""

    words: str = Field(examples=["queued behind 2 runs: tiny-addition-77b0d2, demo-1 (priority 0)"])
    ahead: list[str] = Field(examples=[["tiny-addition-77b0d2", "demo-1"]])
    """The first few of the runs that get a session before it, in their order."""
    num_ahead: int = Field(examples=[2])
    holders: list[str] = Field(examples=[["demo-0"]])
    """The first few of the runs that have a session, the oldest holder first."""
    num_holders: int = Field(examples=[1])
    priority: int = Field(examples=[0])
    since: datetime


class RunLinks(_View):
    self: str = Field(examples=[f"/v1/runs/{_RUN_ID}"])
    steps: str = Field(examples=[f"/v1/runs/{_RUN_ID}/steps"])
    temporal: str | None = Field(
        default=None, examples=[f"http://127.0.0.1:8233/namespaces/ratchet/workflows/{_RUN_ID}"]
    )
    """The run's history in the Temporal Web UI."""
    ray: str | None = Field(default=None, examples=["http://ray-head:8265"])
    """The Ray dashboard, where the cluster has one."""


class RunSummary(_View):
    """A run, in a list."""

    id: str = Field(examples=[_RUN_ID])
    name: str = Field(examples=["tiny-addition"])
    """The recipe's name."""
    phase: RunPhase = Field(examples=[RunPhase.RUNNING])
    step: int = Field(examples=[12])
    """Optimizer steps done."""
    max_num_steps: int = Field(examples=[40])
    incarnation: int = Field(examples=[1])
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    fault: Fault | None = None
    """Why it failed; while it recovers or is stalled, why."""
    reward_mean: float | None = Field(default=None, examples=[0.61])
    """Of the newest step."""
    ettr: float | None = Field(default=None, examples=[0.93])
    """Effective training time ratio: the share of the run's time that brought it further. What did not: the
    time until it had weights, recoveries, and what was trained and then had to be trained again. null until
    it has weights."""
    last_incident: IncidentView | None = None
    queue: QueueView | None = None
    """Of a queued run."""
    links: RunLinks


class RunView(RunSummary):
    """A run, with everything one screen shows."""

    spec: dict[str, Any]
    last_step: StepView | None = None
    evaluations: list[EvaluationView] = []
    last_checkpoint: CheckpointView | None = None
    live: bool = Field(default=False, examples=[True])
    """The workflow itself answered; false: this is what the store and Temporal know without it."""
    doing: list[str] = Field(
        default=[],
        examples=[["step 13: roll out prompts 192 to 207 with weights 1.12.9f86d081 (7 of 16 groups)"]],
    )
    """A line for everything that is open: what it is, how far it is, and why it is tried again."""
    stop_requested: bool = False
    incidents: list[IncidentView] = []
    """The newest few, oldest first."""


class RunList(_View):
    runs: list[RunSummary]
    next_cursor: str | None = None
    """Pass it as `cursor` for the next page; null on the last one."""


class StepList(_View):
    run: str = Field(examples=[_RUN_ID])
    steps: list[StepView]
    next_cursor: str | None = None
    """Pass it as `cursor` for the next page; null on the last one."""


class MetricList(_View):
    """Measurements of the steps on the path to the run's head, as columns of the same length."""

    run: str = Field(examples=[_RUN_ID])
    names: list[str] = Field(examples=[["reward_mean", "loss", "logprob_error"]])
    """Every metric that the run has."""
    steps: list[int] = Field(examples=[[1, 2, 3]])
    incarnations: list[int] = Field(examples=[[1, 1, 2]])
    """Which incarnation trained each step."""
    finished_at: list[datetime] = []
    """When each step ended."""
    series: dict[str, list[float | None]] = Field(examples=[{"reward_mean": [0.4, None, 0.6]}])
    """By name; null where a measurement is missing or was not finite."""


class CheckpointList(_View):
    run: str = Field(examples=[_RUN_ID])
    checkpoints: list[CheckpointView]
    """Of every incarnation, by incarnation and step."""


class EvaluationList(_View):
    run: str = Field(examples=[_RUN_ID])
    evaluations: list[EvaluationView]
    """Of every incarnation, by incarnation and step."""


class EventView(_View):
    """Something that happened to a run: the data of a server-sent event, whose id is `id`."""

    id: int = Field(examples=[412])
    """Rises over all runs, in the order things were written down."""
    run: str = Field(examples=[_RUN_ID])
    incarnation: int = Field(examples=[1])
    kind: str = Field(examples=["step"])
    """registered, state, incarnation, step, checkpoint, evaluation or event."""
    at: float = Field(examples=[1_700_000_000.0])
    """Workflow time, seconds since the epoch."""
    data: dict[str, JsonValue] = Field(examples=[{"step": 12, "reward_mean": 0.61}])


class IncidentList(_View):
    run: str = Field(examples=[_RUN_ID])
    incidents: list[IncidentView]
    """Oldest first."""


class RebuildReport(_View):
    """What a projection was rebuilt from, or what it would be rebuilt from."""

    run: str = Field(examples=[_RUN_ID])
    what: str = Field(examples=["store"])
    complete: bool = Field(examples=[True])
    """Nothing is missing of what the projection has to hold."""
    found: dict[str, int] = Field(examples=[{"executions": 3, "records": 41, "checkpoints": 0}])
    """How much there was, by kind."""
    remarks: list[str] = []
    """A line for everything that a person should know of it."""


class ProblemItem(SpecProblem):
    """One of several things wrong with a request."""

    pointer: str = Field(examples=["#/spec/grpo/max_num_steps"])
    """Where in the request's body, as a JSON pointer."""
    detail: str = Field(examples=["grpo.max_num_steps: -3; allowed: an integer > 0"])


class Problem(BaseModel):
    """An error, as RFC 9457 describes it (application/problem+json)."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    type: str = Field(default="about:blank", examples=["urn:ratchet:problem:invalid-spec"])
    title: str = Field(examples=["The run spec cannot be run"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["grpo.max_num_steps: -3; allowed: an integer > 0"])
    """One line, with the fix."""
    instance: str | None = Field(default=None, examples=["/v1/runs"])
    errors: list[ProblemItem] = []
    """Every problem of the request, when there may be several."""
