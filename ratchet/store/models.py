"""Tables of the store. Portable over SQLite and Postgres; every schema change also needs a migration.

What these classes cannot say is said by triggers (migration 0003): rows are append-only, incarnations only
rise, only a newer one reopens an ended run. The views rollout_batches, weight_versions and incidents there
show parts of these tables by their own names.

Times are float seconds since the epoch, UTC: what workflow time is already, exact in JSON, and free of the
time zone that SQLite's datetimes lose. Measured floats are nullable, since a measurement may be missing or
not a number.
"""

from typing import Any, ClassVar

from pydantic import JsonValue
from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Double,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column
from sqlalchemy.types import TypeEngine

from ratchet.spec.state import RunPhase

JsonObject = dict[str, JsonValue]
Positions = list[int]


def _phase_values(phases: type[RunPhase]) -> list[str]:
    return [phase.value for phase in phases]


class Base(MappedAsDataclass, DeclarativeBase, kw_only=True, eq=False):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any]]] = {
        # SQLite numbers rows by itself only in a column of type INTEGER (64 bits there).
        int: BigInteger().with_variant(Integer(), "sqlite"),
        float: Double(),
        str: String(),
        JsonObject: JSON(none_as_null=True),
        Positions: JSON(none_as_null=True),
        RunPhase: Enum(RunPhase, native_enum=False, length=16, values_callable=_phase_values),
    }


def _of_incarnation() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["run", "incarnation"], ["incarnations.run", "incarnations.number"])


class Run(Base):
    """The head of a run: everything but the head, and the last step, is fixed when the run is registered."""

    __tablename__ = "runs"
    __table_args__ = (
        CheckConstraint("step >= 0", name="step_not_negative"),
        CheckConstraint("incarnation >= 1", name="incarnation_from_one"),
        Index(None, "created_at", "id"),
        Index(None, "phase", "created_at", "id"),
        Index(None, "recipe", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    recipe: Mapped[str]
    spec: Mapped[JsonObject]
    spec_digest: Mapped[str]
    seed: Mapped[int]
    max_num_steps: Mapped[int]
    code: Mapped[JsonObject]
    inputs: Mapped[JsonObject | None]
    created_at: Mapped[float]
    workflow_run_id: Mapped[str]

    incarnation: Mapped[int]
    phase: Mapped[RunPhase]
    phase_at: Mapped[float | None]
    """Workflow time of what set `phase`; None until the newest incarnation has said one."""
    step: Mapped[int]
    step_at: Mapped[float | None]
    """Workflow time of what set `step`; None until the newest incarnation has said one."""
    fault: Mapped[JsonObject | None]
    updated_at: Mapped[float]
    ended_at: Mapped[float | None]


class Incarnation(Base):
    """One life of a run. The columns of the restore are filled once, when its weights are live."""

    __tablename__ = "incarnations"
    __table_args__ = (
        CheckConstraint("number >= 1", name="number_from_one"),
        CheckConstraint("restored_step >= 0", name="restored_step_not_negative"),
        Index(None, "parent_run", "parent_incarnation"),
    )

    run: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    opened_at: Mapped[float]
    restored_at: Mapped[float | None]
    restored_step: Mapped[int | None]
    restored_digest: Mapped[str | None]
    from_checkpoint: Mapped[str | None]
    model_digest: Mapped[str | None]
    num_parameters: Mapped[int | None]
    parent_run: Mapped[str | None]
    parent_incarnation: Mapped[int | None]


class Step(Base):
    """One optimizer step of one incarnation."""

    __tablename__ = "steps"
    __table_args__ = (
        _of_incarnation(),
        CheckConstraint("step >= 1", name="step_from_one"),
        CheckConstraint("cursor_end >= cursor_start", name="cursor_range"),
    )

    run: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version_digest: Mapped[str]
    started_at: Mapped[float]
    finished_at: Mapped[float]

    cursor_start: Mapped[int]
    cursor_end: Mapped[int]
    num_groups: Mapped[int]
    num_samples: Mapped[int]
    num_tokens: Mapped[int]
    replayed_groups: Mapped[int]
    zero_advantage_groups: Mapped[int]
    samples_generated: Mapped[int]
    optimizer_steps: Mapped[int]

    reward_mean: Mapped[float | None]
    reward_std: Mapped[float | None]
    accuracy: Mapped[float | None]
    length_mean: Mapped[float | None]
    truncated_fraction: Mapped[float | None]
    loss: Mapped[float | None]
    grad_norm: Mapped[float | None]
    learning_rate: Mapped[float | None]
    logprob_error: Mapped[float | None]
    kl: Mapped[float | None]
    metrics: Mapped[JsonObject]

    rollout_engine_s: Mapped[float]
    rollout_submits: Mapped[int]
    rollout_starts: Mapped[int]
    train_engine_s: Mapped[float]
    train_submits: Mapped[int]
    train_starts: Mapped[int]
    refit_engine_s: Mapped[float]
    refit_submits: Mapped[int]
    refit_starts: Mapped[int]
    refit_bytes: Mapped[int]
    wire_digest: Mapped[str]

    rollout_incarnation: Mapped[int | None]
    rollout_step: Mapped[int | None]
    rollout_digest: Mapped[str | None]
    dropped: Mapped[Positions | None]


class Checkpoint(Base):
    """A committed checkpoint: a projection of its manifest."""

    __tablename__ = "checkpoints"
    __table_args__ = (_of_incarnation(), CheckConstraint("step >= 0", name="step_not_negative"))

    run: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version_digest: Mapped[str]
    cursor: Mapped[int]
    path: Mapped[str]
    digest: Mapped[str]
    manifest_digest: Mapped[str]
    num_bytes: Mapped[int]
    num_files: Mapped[int]
    write_s: Mapped[float]
    submits: Mapped[int]
    starts: Mapped[int]
    committed_at: Mapped[float]


class Evaluation(Base):
    """Accuracy of one weight version on the held-out problems."""

    __tablename__ = "evaluations"
    __table_args__ = (_of_incarnation(), CheckConstraint("step >= 0", name="step_not_negative"))

    run: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version_digest: Mapped[str]
    num_problems: Mapped[int]
    accuracy: Mapped[float | None]
    reward_mean: Mapped[float | None]
    length_mean: Mapped[float | None]
    engine_s: Mapped[float]
    submits: Mapped[int]
    starts: Mapped[int]
    evaluated_at: Mapped[float]


class Event(Base):
    """Something people want to know later. `id` orders events over all runs."""

    __tablename__ = "events"
    __table_args__ = (
        _of_incarnation(),
        UniqueConstraint("run", "incarnation", "key"),
        Index(None, "run", "id"),
        Index(None, "run", "topic", "at", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    run: Mapped[str]
    incarnation: Mapped[int]
    key: Mapped[str]
    topic: Mapped[str]
    message: Mapped[str]
    data: Mapped[JsonObject]
    at: Mapped[float]


class Forgetting(Base):
    """Runs whose rows may be deleted. Holds a row only inside the transaction that deletes a run."""

    __tablename__ = "forgetting"

    run: Mapped[str] = mapped_column(primary_key=True)
