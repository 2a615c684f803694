"""Incarnations say which incarnation their checkpoint is of: the path to the head may skip some."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("incarnations", sa.Column("parent_incarnation", integer, nullable=True))


def downgrade() -> None:
    op.drop_column("incarnations", "parent_incarnation")
