"""Tokens, audit, idempotency keys, and the outbox that events are read from."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FLOAT: sa.Double[float] = sa.Double()


def upgrade() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", _FLOAT, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("revoked_at", _FLOAT, nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="ck_api_tokens_role_is_known"),
        sa.PrimaryKeyConstraint("id", name="pk_api_tokens"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _INT, nullable=False),
        sa.Column("at", _FLOAT, nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("status", _INT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("body_digest", sa.String(), nullable=False),
        sa.Column("created_at", _FLOAT, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency_keys"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", _INT, autoincrement=False, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("incarnation", _INT, nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", _FLOAT, nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("run", "incarnation", "key", name="uq_outbox_run_incarnation_key"),
    )
    op.create_index("ix_outbox_run_id", "outbox", ["run", "id"])
    head = op.create_table(
        "outbox_head",
        sa.Column("one", _INT, autoincrement=False, nullable=False),
        sa.Column("newest", _INT, nullable=False),
        sa.PrimaryKeyConstraint("one", name="pk_outbox_head"),
    )
    op.bulk_insert(head, [{"one": 1, "newest": 0}])


def downgrade() -> None:
    for table in ("outbox_head", "outbox", "idempotency_keys", "audit", "api_tokens"):
        op.drop_table(table)
