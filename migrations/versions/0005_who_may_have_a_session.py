"""Admission: who has a session, and who waits for one."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FLOAT: sa.Double[float] = sa.Double()


def upgrade() -> None:
    op.create_table(
        "admissions",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("execution", sa.String(), nullable=False),
        sa.Column("priority", _INT, nullable=False),
        sa.Column("since", _FLOAT, nullable=False),
        sa.Column("turn", _INT, nullable=True),
        sa.Column("waiter_execution", sa.String(), nullable=True),
        sa.Column("waiter_activity", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("run", name="pk_admissions"),
        sa.UniqueConstraint("turn", name="uq_admissions_turn"),
    )


def downgrade() -> None:
    op.drop_table("admissions")
