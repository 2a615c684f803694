"""What the API answers about lineage: where weights come from, and what became of them."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, JsonValue

_RUN_ID = "tiny-addition-3fa2c1"


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class WeightsView(_View):
    """A weight version that something points to."""

    run: str = Field(examples=[_RUN_ID])
    incarnation: int = Field(examples=[1])
    step: int = Field(examples=[20])
    digest: str | None = Field(examples=["9f86d081884c7d659a2feaa0c55ad015"])
    """null: not recorded."""


class LifeView(_View):
    """An incarnation, and what it was made with."""

    run: str = Field(examples=[_RUN_ID])
    incarnation: int = Field(examples=[2])
    depth: int = Field(examples=[0])
    """Lives between this one and the one asked about."""
    recipe: str = Field(examples=["tiny-addition"])
    seed: int = Field(examples=[0])
    spec_digest: str
    """sha256 of the run spec's JSON form."""
    code: dict[str, JsonValue] = Field(examples=[{"ratchet": "0.1.0", "torch": "2.13.0"}])
    inputs: dict[str, JsonValue]
    """Digests of environment and data set."""
    opened_at: datetime
    restored_step: int = Field(examples=[20])
    model_digest: str | None
    """Of the base model."""
    from_checkpoint: str | None
    """null: it grew from the base model."""
    parent: WeightsView | None = None
    """The weights it grew from; null: the base model's."""


class TrainingView(_View):
    """Steps of one life between two weights that matter, and the prompts they were trained on."""

    before: WeightsView
    after: WeightsView
    num_steps: int = Field(examples=[20])
    cursor_start: int = Field(examples=[0])
    cursor_end: int = Field(examples=[320])
    """Prompts [cursor_start, cursor_end)."""


class SavedView(WeightsView):
    """A checkpoint."""

    path: str
    state_digest: str
    committed_at: datetime


class ScoredView(WeightsView):
    """An evaluation."""

    accuracy: float | None = Field(examples=[0.42])
    num_problems: int = Field(examples=[256])
    evaluated_at: datetime


class LineageView(_View):
    """The line of some weights, up to the base model or down to everything that grew from them."""

    run: str = Field(examples=[_RUN_ID])
    incarnation: int
    step: int
    lives: list[LifeView]
    """The one asked about first."""
    training: list[TrainingView]
    checkpoints: list[SavedView]
    evaluations: list[ScoredView]
