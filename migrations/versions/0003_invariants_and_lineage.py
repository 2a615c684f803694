"""Rows say which weights and which run they came from, and the database itself holds the invariants.

Whoever changes one of these tables on SQLite by copying it (batch mode) has to make its triggers and views
again: SQLite drops the ones with the table, and refuses the copy while the others are there.
"""

import re

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_KEPT = "NOT EXISTS (SELECT 1 FROM forgetting WHERE forgetting.run = OLD.run)"
_APPEND_ONLY = ("steps", "checkpoints", "evaluations", "events")

# Name, table, before what, when it is refused, why: the same SQL for both databases.
_RULES = [
    *((f"{table}_are_final", table, "UPDATE", "1 = 1", f"{table} are append-only") for table in _APPEND_ONLY),
    *(
        (f"{table}_are_kept", table, "DELETE", _KEPT, f"{table} are deleted only with the run they are of")
        for table in (*_APPEND_ONLY, "incarnations")
    ),
    (
        "runs_are_kept",
        "runs",
        "DELETE",
        _KEPT.replace("OLD.run", "OLD.id"),
        "a run that is kept is not deleted",
    ),
    (
        "runs_are_fixed",
        "runs",
        "UPDATE",
        "NEW.id <> OLD.id OR NEW.spec_digest <> OLD.spec_digest OR NEW.seed <> OLD.seed "
        "OR NEW.created_at <> OLD.created_at",
        "what a run is does not change",
    ),
    (
        "runs_only_rise",
        "runs",
        "UPDATE",
        "NEW.incarnation < OLD.incarnation",
        "the head of a run does not go back to an older incarnation",
    ),
    (
        "runs_end_once",
        "runs",
        "UPDATE",
        "OLD.phase IN ('completed', 'stopped', 'failed') AND NEW.phase <> OLD.phase "
        "AND NEW.incarnation = OLD.incarnation",
        "only a newer incarnation reopens an ended run",
    ),
    (
        "incarnations_restore_once",
        "incarnations",
        "UPDATE",
        "OLD.restored_at IS NOT NULL OR NEW.run <> OLD.run OR NEW.number <> OLD.number "
        "OR NEW.opened_at <> OLD.opened_at",
        "an incarnation restores once",
    ),
    (
        "checkpoints_are_committed",
        "checkpoints",
        "INSERT",
        "NEW.manifest_digest = '' OR NEW.digest = ''",
        "a checkpoint is recorded once its manifest is committed",
    ),
]

_VIEWS = {
    "rollout_batches": """
        SELECT run, incarnation, step, cursor_start, cursor_end, num_groups, num_samples, num_tokens,
            replayed_groups, dropped, rollout_incarnation AS from_incarnation, rollout_step AS from_step,
            rollout_digest AS from_digest
        FROM steps""",
    "weight_versions": """
        SELECT run, incarnation, step, version_digest AS digest, 'train_step' AS made_by,
            run AS parent_run, incarnation AS parent_incarnation, step - 1 AS parent_step
        FROM steps
        UNION ALL
        SELECT run, number, restored_step, restored_digest, 'restore',
            parent_run, parent_incarnation, CASE WHEN parent_run IS NOT NULL THEN restored_step END
        FROM incarnations WHERE restored_at IS NOT NULL""",
    "incidents": """
        SELECT id, run, incarnation, key, message, data, at FROM events WHERE topic = 'incident'""",
}

# Until now every run was synchronous: a step's prompts were answered by the weights before it.
_ROLLOUT_VERSIONS = """
    UPDATE steps SET rollout_incarnation = incarnation, rollout_step = step - 1, rollout_digest = COALESCE(
        (SELECT before.version_digest FROM steps before WHERE before.run = steps.run
            AND before.incarnation = steps.incarnation AND before.step = steps.step - 1),
        (SELECT life.restored_digest FROM incarnations life WHERE life.run = steps.run
            AND life.number = steps.incarnation AND life.restored_step = steps.step - 1))"""

_CHECKPOINT = re.compile(r"(?:^|/)runs/([^/]+)/checkpoints/(\d+)-\d+/?$")
"""A checkpoint folder is named for its run, incarnation and step."""


def upgrade() -> None:
    op.create_table(
        "forgetting",
        sa.Column("run", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_forgetting"),
    )
    op.add_column("runs", sa.Column("inputs", sa.JSON(), nullable=True))
    op.add_column("incarnations", sa.Column("parent_run", sa.String(), nullable=True))
    op.add_column("steps", sa.Column("rollout_incarnation", _INT, nullable=True))
    op.add_column("steps", sa.Column("rollout_step", _INT, nullable=True))
    op.add_column("steps", sa.Column("rollout_digest", sa.String(), nullable=True))
    op.add_column("steps", sa.Column("dropped", sa.JSON(), nullable=True))
    op.create_index("ix_runs_phase_created_at_id", "runs", ["phase", "created_at", "id"])
    op.create_index("ix_runs_recipe_created_at_id", "runs", ["recipe", "created_at", "id"])
    op.create_index(
        "ix_incarnations_parent_run_parent_incarnation", "incarnations", ["parent_run", "parent_incarnation"]
    )
    op.create_index("ix_events_run_topic_at_id", "events", ["run", "topic", "at", "id"])
    op.execute(_ROLLOUT_VERSIONS)
    _name_parents()
    for name, select in _VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {select}")
    for rule in _RULES:
        _create(*rule)


def downgrade() -> None:
    for name, table, *_ in _RULES:
        if op.get_bind().dialect.name == "sqlite":
            op.execute(f"DROP TRIGGER {name}")
        else:
            op.execute(f"DROP TRIGGER {name} ON {table}")
            op.execute(f"DROP FUNCTION {name}()")
    for name in _VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.drop_index("ix_events_run_topic_at_id", "events")
    op.drop_index("ix_incarnations_parent_run_parent_incarnation", "incarnations")
    op.drop_index("ix_runs_recipe_created_at_id", "runs")
    op.drop_index("ix_runs_phase_created_at_id", "runs")
    for column in ("rollout_incarnation", "rollout_step", "rollout_digest", "dropped"):
        op.drop_column("steps", column)
    op.drop_column("incarnations", "parent_run")
    op.drop_column("runs", "inputs")
    op.drop_table("forgetting")


def _create(name: str, table: str, action: str, refused: str, why: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {action} ON {table} WHEN {refused} "
            f"BEGIN SELECT RAISE(ABORT, '{why}'); END"
        )
        return
    row = "OLD" if action == "DELETE" else "NEW"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {refused} THEN RAISE EXCEPTION '{why}' USING ERRCODE = 'integrity_constraint_violation'; "
        f"END IF; "
        f"RETURN {row}; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {action} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _name_parents() -> None:
    """Which checkpoint an incarnation grew from is in that checkpoint's path; where it is not, it was one of
    the incarnation before."""
    connection = op.get_bind()
    lives = sa.table(
        "incarnations",
        *(
            sa.column(name)
            for name in ("run", "number", "from_checkpoint", "parent_incarnation", "parent_run")
        ),
    )
    for life in connection.execute(sa.select(lives).where(lives.c.from_checkpoint.is_not(None))).all():
        found = _CHECKPOINT.search(life.from_checkpoint)
        run, incarnation = (found[1], int(found[2])) if found else (life.run, None)
        if life.parent_incarnation is not None:
            incarnation = life.parent_incarnation
        elif incarnation is None:
            older = sa.select(sa.func.max(lives.c.number)).where(
                lives.c.run == life.run, lives.c.number < life.number
            )
            incarnation = connection.scalar(older)
        connection.execute(
            lives.update()
            .where(lives.c.run == life.run, lives.c.number == life.number)
            .values(parent_run=run, parent_incarnation=incarnation)
        )
