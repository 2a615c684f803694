"""How far what is told of runs elsewhere has followed the outbox: see ratchet.sinks."""

from pydantic import BaseModel, ConfigDict, JsonValue
from sqlalchemy import Index, select
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.spec.faults import Conflict
from ratchet.store.models import Base, JsonObject
from ratchet.store.store import Store

_EVERYBODY = ("", "")
"""Run and sink of the row that says up to which notice runs were looked up."""


class SinkPosition(Base):
    """One sink of one run."""

    __tablename__ = "sink_positions"
    __table_args__ = (Index(None, "ended"),)

    run: Mapped[str] = mapped_column(primary_key=True)
    sink: Mapped[str] = mapped_column(primary_key=True)
    after: Mapped[int]
    state: Mapped[JsonObject]
    ended: Mapped[bool]


class KeptPosition(BaseModel):
    """Where a sink is."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    after: int = 0
    """Notices up to this id are in the sink."""
    state: dict[str, JsonValue] = {}
    """What the sink has to know to go on from here."""
    ended: bool = False
    """The run has ended, and so has its sink."""


BEGINNING = KeptPosition()


class SinkPositions:
    """Positions in a store. Every method blocks, and raises Unavailable like the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, run: str, sink: str) -> KeptPosition | None:
        with self._store.reading() as session:
            row = session.get(SinkPosition, (run, sink))
            return None if row is None else KeptPosition.model_validate(row)

    def move(self, run: str, sink: str, before: KeptPosition | None, to: KeptPosition) -> None:
        """Raises Conflict if the position is not `before` (None: not there) any more: somebody else follows
        too, and nothing is moved."""
        with self._store.writing() as session:
            row = session.get(SinkPosition, (run, sink), with_for_update=True)
            if (None if row is None else KeptPosition.model_validate(row)) != before:
                raise Conflict(f"{sink} of run {run} is followed by another process as well: end one of them")
            if row is None:
                session.add(SinkPosition(run=run, sink=sink, **to.model_dump()))
            else:
                row.after, row.state, row.ended = to.after, to.state, to.ended

    def unfinished(self) -> list[str]:
        """Runs with a sink that has not ended."""
        with self._store.reading() as session:
            query = select(SinkPosition.run).where(SinkPosition.ended.is_(False), SinkPosition.run != "")
            return sorted(set(session.scalars(query)))

    def looked(self) -> int:
        """Every run with notices up to this id, and sinks, has positions here."""
        kept = self.get(*_EVERYBODY)
        return kept.after if kept else 0

    def keep_looked(self, after: int) -> None:
        self.move(*_EVERYBODY, self.get(*_EVERYBODY), KeptPosition(after=after))
