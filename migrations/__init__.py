"""The store's schema, revision by revision, up and down (Alembic). `ratchet.store.migrate` runs them."""
