"""Idempotency keys: a launch that is asked for again, because no answer came, is the same launch."""

from pydantic import BaseModel, ConfigDict
from sqlalchemy import String
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.store.models import Base
from ratchet.store.store import Store

LONGEST = 255
"""Characters of a key."""


class IdempotencyKey(Base):
    """A key that a launch came with. Kept as long as the store: what it was used for does not change."""

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(LONGEST), primary_key=True)
    run: Mapped[str]
    body_digest: Mapped[str]
    created_at: Mapped[float]


class Claim(BaseModel):
    """What a key stands for."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    run: str
    body_digest: str
    """sha256 of the request that first came with the key, as hex."""


class IdempotencyKeys:
    """Keys in a store. Every method blocks, and raises Unavailable like the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> Claim | None:
        with self._store.reading() as session:
            row = session.get(IdempotencyKey, key)
            return None if row is None else Claim.model_validate(row)

    def claim(self, key: str, *, run: str, body_digest: str, at: float) -> Claim:
        """Let the key stand for this launch, unless it stands for one already: what it stands for now."""
        try:
            with self._store.writing() as session:
                if known := session.get(IdempotencyKey, key):
                    return Claim.model_validate(known)
                session.add(IdempotencyKey(key=key, run=run, body_digest=body_digest, created_at=at))
        except IntegrityError:  # another process was faster by a moment
            known = self.get(key)
            if known is None:
                raise
            return known
        return Claim(run=run, body_digest=body_digest)
