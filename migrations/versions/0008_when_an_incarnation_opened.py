"""An incarnation opened at the earliest time that speaks of it, whichever of its records came first."""

from alembic import op

revision = "0008"
down_revision = "0007"

_NAME = "incarnations_restore_once"
_WHY = "an incarnation restores once"

_FILLED_ONCE = (
    "restored_at",
    "restored_step",
    "restored_digest",
    "from_checkpoint",
    "model_digest",
    "num_parameters",
    "parent_run",
    "parent_incarnation",
)
_SAME_KEY = "NEW.run <> OLD.run OR NEW.number <> OLD.number"
_BEFORE = f"OLD.restored_at IS NOT NULL OR {_SAME_KEY} OR NEW.opened_at <> OLD.opened_at"


def upgrade() -> None:
    # As text, since a NULL that becomes something else is another value too.
    changed = " OR ".join(
        f"COALESCE(CAST(NEW.{name} AS TEXT), '') <> COALESCE(CAST(OLD.{name} AS TEXT), '')"
        for name in _FILLED_ONCE
    )
    _replace(f"{_SAME_KEY} OR NEW.opened_at > OLD.opened_at OR (OLD.restored_at IS NOT NULL AND ({changed}))")


def downgrade() -> None:
    _replace(_BEFORE)


def _replace(refused: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"DROP TRIGGER {_NAME}")
        op.execute(
            f"CREATE TRIGGER {_NAME} BEFORE UPDATE ON incarnations WHEN {refused} "
            f"BEGIN SELECT RAISE(ABORT, '{_WHY}'); END"
        )
        return
    op.execute(  # the trigger calls it by name
        f"CREATE OR REPLACE FUNCTION {_NAME}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {refused} THEN RAISE EXCEPTION '{_WHY}' USING ERRCODE = 'integrity_constraint_violation'; "
        f"END IF; "
        f"RETURN NEW; END $$"
    )
