"""How far every metric sink and webhook has followed the outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sink_positions",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("sink", sa.String(), nullable=False),
        sa.Column("after", _INT, nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run", "sink", name="pk_sink_positions"),
    )
    op.create_index("ix_sink_positions_ended", "sink_positions", ["ended"])


def downgrade() -> None:
    op.drop_table("sink_positions")
