"""Who asked for what: a row for every call that may change something, written before it is carried out."""

from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.store.models import Base
from ratchet.store.store import Store


class AuditEntry(Base):
    """A call of the API. `status` stays empty when the API ended before it could answer."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    at: Mapped[float]
    who: Mapped[str]
    role: Mapped[str]
    origin: Mapped[str]
    method: Mapped[str]
    path: Mapped[str]
    status: Mapped[int | None]


class AuditRecord(BaseModel):
    """A call that may have changed something."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    id: int
    at: float
    who: str
    """Id and name of the token; `loopback` where none was asked for."""
    role: str
    origin: str
    """Address of the caller, as far as the API sees it."""
    method: str
    path: str
    status: int | None
    """What was answered; None: nothing was, because the API ended before."""


class Audit:
    """The audit in a store. Every method blocks, and raises Unavailable like the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, *, at: float, who: str, role: str, origin: str, method: str, path: str) -> int:
        """Write down that somebody asks; the row's id."""
        row = AuditEntry(at=at, who=who, role=role, origin=origin, method=method, path=path, status=None)
        with self._store.writing() as session:
            session.add(row)
            session.flush()
            return row.id

    def end(self, entry: int, status: int) -> None:
        """Write down what was answered."""
        with self._store.writing() as session:
            if row := session.get(AuditEntry, entry):
                row.status = status

    def newest(self, *, limit: int, before: int | None = None) -> list[AuditRecord]:
        """The newest first; `before`: only rows with a lower id."""
        query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditEntry.id < before)
        with self._store.reading() as session:
            return [AuditRecord.model_validate(row) for row in session.scalars(query)]
