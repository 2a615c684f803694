"""First tables: runs, incarnations, steps, checkpoints, evaluations, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# SQLite numbers rows by itself only in a column of type INTEGER (64 bits there).
_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FLOAT: sa.Double[float] = sa.Double()


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("spec_digest", sa.String(), nullable=False),
        sa.Column("seed", _INT, nullable=False),
        sa.Column("max_num_steps", _INT, nullable=False),
        sa.Column("code", sa.JSON(), nullable=False),
        sa.Column("created_at", _FLOAT, nullable=False),
        sa.Column("workflow_run_id", sa.String(), nullable=False),
        sa.Column("incarnation", _INT, nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("phase_at", _FLOAT, nullable=True),
        sa.Column("step", _INT, nullable=False),
        sa.Column("step_at", _FLOAT, nullable=True),
        sa.Column("fault", sa.JSON(), nullable=True),
        sa.Column("updated_at", _FLOAT, nullable=False),
        sa.Column("ended_at", _FLOAT, nullable=True),
        sa.CheckConstraint("incarnation >= 1", name="ck_runs_incarnation_from_one"),
        sa.CheckConstraint("step >= 0", name="ck_runs_step_not_negative"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"])
    op.create_table(
        "incarnations",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("number", _INT, nullable=False),
        sa.Column("opened_at", _FLOAT, nullable=False),
        sa.Column("restored_at", _FLOAT, nullable=True),
        sa.Column("restored_step", _INT, nullable=True),
        sa.Column("restored_digest", sa.String(), nullable=True),
        sa.Column("from_checkpoint", sa.String(), nullable=True),
        sa.Column("model_digest", sa.String(), nullable=True),
        sa.Column("num_parameters", _INT, nullable=True),
        sa.CheckConstraint("number >= 1", name="ck_incarnations_number_from_one"),
        sa.CheckConstraint("restored_step >= 0", name="ck_incarnations_restored_step_not_negative"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_incarnations_run_runs"),
        sa.PrimaryKeyConstraint("run", "number", name="pk_incarnations"),
    )
    op.create_table(
        "steps",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("incarnation", _INT, nullable=False),
        sa.Column("step", _INT, nullable=False),
        sa.Column("version_digest", sa.String(), nullable=False),
        sa.Column("started_at", _FLOAT, nullable=False),
        sa.Column("finished_at", _FLOAT, nullable=False),
        sa.Column("cursor_start", _INT, nullable=False),
        sa.Column("cursor_end", _INT, nullable=False),
        sa.Column("num_groups", _INT, nullable=False),
        sa.Column("num_samples", _INT, nullable=False),
        sa.Column("num_tokens", _INT, nullable=False),
        sa.Column("replayed_groups", _INT, nullable=False),
        sa.Column("zero_advantage_groups", _INT, nullable=False),
        sa.Column("samples_generated", _INT, nullable=False),
        sa.Column("optimizer_steps", _INT, nullable=False),
        sa.Column("reward_mean", _FLOAT, nullable=True),
        sa.Column("reward_std", _FLOAT, nullable=True),
        sa.Column("accuracy", _FLOAT, nullable=True),
        sa.Column("length_mean", _FLOAT, nullable=True),
        sa.Column("truncated_fraction", _FLOAT, nullable=True),
        sa.Column("loss", _FLOAT, nullable=True),
        sa.Column("grad_norm", _FLOAT, nullable=True),
        sa.Column("learning_rate", _FLOAT, nullable=True),
        sa.Column("logprob_error", _FLOAT, nullable=True),
        sa.Column("kl", _FLOAT, nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("rollout_engine_s", _FLOAT, nullable=False),
        sa.Column("rollout_submits", _INT, nullable=False),
        sa.Column("rollout_starts", _INT, nullable=False),
        sa.Column("train_engine_s", _FLOAT, nullable=False),
        sa.Column("train_submits", _INT, nullable=False),
        sa.Column("train_starts", _INT, nullable=False),
        sa.Column("refit_engine_s", _FLOAT, nullable=False),
        sa.Column("refit_submits", _INT, nullable=False),
        sa.Column("refit_starts", _INT, nullable=False),
        sa.Column("refit_bytes", _INT, nullable=False),
        sa.Column("wire_digest", sa.String(), nullable=False),
        sa.CheckConstraint("cursor_end >= cursor_start", name="ck_steps_cursor_range"),
        sa.CheckConstraint("step >= 1", name="ck_steps_step_from_one"),
        sa.ForeignKeyConstraint(
            ["run", "incarnation"],
            ["incarnations.run", "incarnations.number"],
            name="fk_steps_run_incarnation_incarnations",
        ),
        sa.PrimaryKeyConstraint("run", "incarnation", "step", name="pk_steps"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("incarnation", _INT, nullable=False),
        sa.Column("step", _INT, nullable=False),
        sa.Column("version_digest", sa.String(), nullable=False),
        sa.Column("cursor", _INT, nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("manifest_digest", sa.String(), nullable=False),
        sa.Column("num_bytes", _INT, nullable=False),
        sa.Column("num_files", _INT, nullable=False),
        sa.Column("write_s", _FLOAT, nullable=False),
        sa.Column("submits", _INT, nullable=False),
        sa.Column("starts", _INT, nullable=False),
        sa.Column("committed_at", _FLOAT, nullable=False),
        sa.CheckConstraint("step >= 0", name="ck_checkpoints_step_not_negative"),
        sa.ForeignKeyConstraint(
            ["run", "incarnation"],
            ["incarnations.run", "incarnations.number"],
            name="fk_checkpoints_run_incarnation_incarnations",
        ),
        sa.PrimaryKeyConstraint("run", "incarnation", "step", name="pk_checkpoints"),
    )
    op.create_table(
        "evaluations",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("incarnation", _INT, nullable=False),
        sa.Column("step", _INT, nullable=False),
        sa.Column("version_digest", sa.String(), nullable=False),
        sa.Column("num_problems", _INT, nullable=False),
        sa.Column("accuracy", _FLOAT, nullable=True),
        sa.Column("reward_mean", _FLOAT, nullable=True),
        sa.Column("length_mean", _FLOAT, nullable=True),
        sa.Column("engine_s", _FLOAT, nullable=False),
        sa.Column("submits", _INT, nullable=False),
        sa.Column("starts", _INT, nullable=False),
        sa.Column("evaluated_at", _FLOAT, nullable=False),
        sa.CheckConstraint("step >= 0", name="ck_evaluations_step_not_negative"),
        sa.ForeignKeyConstraint(
            ["run", "incarnation"],
            ["incarnations.run", "incarnations.number"],
            name="fk_evaluations_run_incarnation_incarnations",
        ),
        sa.PrimaryKeyConstraint("run", "incarnation", "step", name="pk_evaluations"),
    )
    op.create_table(
        "events",
        sa.Column("id", _INT, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("incarnation", _INT, nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("at", _FLOAT, nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "incarnation"],
            ["incarnations.run", "incarnations.number"],
            name="fk_events_run_incarnation_incarnations",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("run", "incarnation", "key", name="uq_events_run_incarnation_key"),
    )
    op.create_index("ix_events_run_id", "events", ["run", "id"])


def downgrade() -> None:
    for table in ("events", "evaluations", "checkpoints", "steps", "incarnations", "runs"):
        op.drop_table(table)
