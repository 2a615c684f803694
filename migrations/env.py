"""Runs revisions on the connection it is handed, inside that connection's transaction."""

from alembic import context
from sqlalchemy import Connection

from ratchet.store.models import Base

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    # SQLite changes a table by copying it.
    render_as_batch=True,
    # SQLite has transactional DDL: an interrupted upgrade leaves nothing behind.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
