"""Leases: which of several supervisors acts."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FLOAT: sa.Double[float] = sa.Double()

# Name, before what, when it is refused, why: the same SQL for both databases.
_RULES = (
    ("leases_only_rise", "UPDATE", "NEW.epoch < OLD.epoch", "the epoch of a lease never falls"),
    (
        "leases_change_hands_in_a_new_epoch",
        "UPDATE",
        "NEW.epoch = OLD.epoch AND NEW.holder IS NOT NULL "
        "AND (OLD.holder IS NULL OR NEW.holder <> OLD.holder)",
        "another holder of a lease is another epoch",
    ),
    ("leases_are_kept", "DELETE", "1 = 1", "a lease is given back, not deleted: its epoch has to go on"),
)


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("epoch", _INT, nullable=False),
        sa.Column("renewals", _INT, nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("ttl_s", _FLOAT, nullable=False),
        sa.Column("taken_at", _FLOAT, nullable=False),
        sa.Column("renewed_at", _FLOAT, nullable=False),
        sa.CheckConstraint("epoch >= 1", name="ck_leases_epoch_from_one"),
        sa.CheckConstraint("ttl_s > 0", name="ck_leases_ttl_positive"),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    for rule in _RULES:
        _create(*rule)


def downgrade() -> None:
    op.drop_table("leases")
    if op.get_bind().dialect.name != "sqlite":
        for name, *_ in _RULES:
            op.execute(f"DROP FUNCTION {name}()")


def _create(name: str, action: str, refused: str, why: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {action} ON leases WHEN {refused} "
            f"BEGIN SELECT RAISE(ABORT, '{why}'); END"
        )
        return
    row = "OLD" if action == "DELETE" else "NEW"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {refused} THEN RAISE EXCEPTION '{why}' USING ERRCODE = 'integrity_constraint_violation'; "
        f"END IF; RETURN {row}; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {action} ON leases FOR EACH ROW EXECUTE FUNCTION {name}()")
