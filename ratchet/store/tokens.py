"""Who may ask: bearer tokens, of which only digests are kept.

A token is `ratchet_<id>_<secret>`, the secret 32 random bytes. A plain SHA-256 is enough for those: slow
hashes make guessing dear, and nobody guesses one of 2**256. The id finds the row, so that the comparison with
its digest is the only thing whose time could tell anything, and it is constant.
"""

import hashlib
import hmac
import secrets

from pydantic import BaseModel, ConfigDict
from sqlalchemy import CheckConstraint, select
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.spec.access import Role
from ratchet.store.models import Base
from ratchet.store.store import Store

PREFIX = "ratchet"
SECRET_BYTES = 32


class ApiToken(Base):
    """A token that was given to somebody."""

    __tablename__ = "api_tokens"
    __table_args__ = (CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="role_is_known"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    role: Mapped[str]
    digest: Mapped[str]
    created_at: Mapped[float]
    created_by: Mapped[str]
    revoked_at: Mapped[float | None]


class TokenRecord(BaseModel):
    """A token, without what proves it."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    id: str
    name: str
    role: Role
    created_at: float
    created_by: str
    revoked_at: float | None


class Tokens:
    """Tokens in a store. Every method blocks, and raises Unavailable like the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, name: str, role: Role, *, by: str, at: float) -> tuple[TokenRecord, str]:
        """A new token and, this once, its text."""
        token, secret = secrets.token_hex(4), secrets.token_urlsafe(SECRET_BYTES)
        row = ApiToken(
            id=token,
            name=name,
            role=role.value,
            digest=_digest(secret),
            created_at=at,
            created_by=by,
            revoked_at=None,
        )
        with self._store.writing() as session:
            session.add(row)
            session.flush()
            record = TokenRecord.model_validate(row)
        return record, f"{PREFIX}_{token}_{secret}"

    def holder(self, text: str) -> TokenRecord | None:
        """Whose token this is; None if it is nobody's, or revoked."""
        prefix, _, rest = text.partition("_")
        token, _, secret = rest.partition("_")
        if prefix != PREFIX or not token.isalnum():
            return None
        with self._store.reading() as session:
            row = session.get(ApiToken, token)
            if row is None or not hmac.compare_digest(row.digest, _digest(secret)):
                return None
            return TokenRecord.model_validate(row) if row.revoked_at is None else None

    def list(self) -> list[TokenRecord]:
        """Every token, revoked ones too, the oldest first."""
        with self._store.reading() as session:
            rows = session.scalars(select(ApiToken).order_by(ApiToken.created_at, ApiToken.id))
            return [TokenRecord.model_validate(row) for row in rows]

    def any(self) -> bool:
        """Whether anybody holds a token that counts."""
        with self._store.reading() as session:
            return (
                session.scalar(select(ApiToken.id).where(ApiToken.revoked_at.is_(None)).limit(1)) is not None
            )

    def revoke(self, token: str, *, at: float) -> TokenRecord | None:
        """End a token; again: no effect. None if there is none."""
        with self._store.writing() as session:
            row = session.get(ApiToken, token)
            if row is None:
                return None
            row.revoked_at = at if row.revoked_at is None else row.revoked_at
            return TokenRecord.model_validate(row)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
