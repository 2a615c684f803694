"""The store's schema, revision by revision, forward only (Alembic). `ratchet.store.migrate` runs them."""
