"""Leases: of everybody who shares a store, one acts at a time, and can tell when it no longer may.

No clock is compared with another. Whoever holds a lease counts, by its own clock, from the moment before it
asked for the last renewal that was confirmed. Whoever wants it counts, by its own clock, from the moment
after it first saw the row as it is, and takes it only if it still is so: a renewal that it had not seen makes
it begin again. So the holder's time is over first, whatever the database's clock, or anybody's, is set to;
only the rates of two machines' clocks have to agree, to a tenth (`SAFE`).
"""

import threading
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict
from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    Double,
    and_,
    cast,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from ratchet.spec.faults import Conflict
from ratchet.store.models import Base
from ratchet.store.store import Store

SAFE = 0.9
"""The part of a lease's time in which its holder may act; in the rest, it and what it started are over."""

_JULIAN_1970 = 2440587.5
_DAY_S = 86_400.0


class Lease(Base):
    """Who acts. Every change raises (epoch, renewals), so that a row that looks the same is the same."""

    __tablename__ = "leases"
    __table_args__ = (
        CheckConstraint("epoch >= 1", name="epoch_from_one"),
        CheckConstraint("ttl_s > 0", name="ttl_positive"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    renewals: Mapped[int]
    holder: Mapped[str | None]
    ttl_s: Mapped[float]
    taken_at: Mapped[float]
    renewed_at: Mapped[float]


class LeaseRecord(BaseModel):
    """A lease as it was seen."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    name: str
    epoch: int
    """Rises with every holder, and never falls."""
    renewals: int
    holder: str | None
    """None: it was given back."""
    ttl_s: float
    """A lease that has not been renewed for this long may be taken."""
    taken_at: float
    """By the database's clock, as the next two: for people. Who may act does not depend on them."""
    renewed_at: float
    age_s: float
    """Since `renewed_at`."""


class Leases:
    """Leases in a store. Every method blocks, and raises Unavailable like the store's own; what it asked for
    may then have happened all the same."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, name: str) -> LeaseRecord | None:
        with self._store.reading() as session:
            return _read(session, name)

    def take(self, name: str, holder: str, ttl_s: float, seen: LeaseRecord | None) -> LeaseRecord | None:
        """Make `holder` the holder, in the next epoch, if the lease still is as it was seen (None: nobody has
        ever held it). None if it is not."""
        try:
            with self._store.writing() as session:
                now = _clock(session)
                new = {"holder": holder, "ttl_s": ttl_s, "renewals": 0, "taken_at": now, "renewed_at": now}
                if seen is None:
                    session.execute(insert(Lease).values(name=name, epoch=1, **new))
                    return _read(session, name)
                same = and_(Lease.name == name, Lease.epoch == seen.epoch, Lease.renewals == seen.renewals)
                return _changed(session, same, {"epoch": seen.epoch + 1, **new})
        except IntegrityError:  # another one was the first, by a moment
            return None

    def renew(self, held: LeaseRecord) -> LeaseRecord | None:
        """Hold it longer. None if it is somebody else's by now, or was given back."""
        # Whatever the number of renewals: one whose answer got lost counts, and the epoch says whose it is.
        with self._store.writing() as session:
            more = {"renewals": Lease.renewals + 1, "renewed_at": _clock(session)}
            return _changed(session, _held(held), more)

    def release(self, held: LeaseRecord) -> None:
        """Give it back, if it is still held: the next one need not wait."""
        with self._store.writing() as session:
            _changed(session, _held(held), {"holder": None, "renewals": Lease.renewals + 1})


class Superseded(Conflict):
    """Somebody else holds the lease, in a higher epoch."""


class Contender:
    """One who wants a lease, holds it, and knows until when. Blocks; safe to share between threads."""

    def __init__(
        self,
        leases: Leases,
        name: str,
        holder: str,
        ttl_s: float,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """`holder`: nobody else's, not even that of an earlier process at the same place. `clock`: seconds
        that also pass while the machine sleeps."""
        self._leases, self._name, self._ttl_s, self._clock = leases, name, ttl_s, clock
        self.holder = holder
        self.held: LeaseRecord | None = None
        self.until = 0.0
        """By `clock`: what the holder does has to be over by then."""
        self.seen: LeaseRecord | None = None
        self._first_seen = 0.0
        self._lock = threading.Lock()

    def contend(self) -> bool:
        """Look at the lease, and take it if it is free, or was not renewed for its time: whether it is held
        now. To be called again and again; whoever calls it does nothing yet that needs the lease."""
        with self._lock:
            self.held = None
            before, self.seen = self.seen, self._leases.read(self._name)
            if before is None or self.seen is None or _state(before) != _state(self.seen):
                self._first_seen = self._clock()
            if not self._may_take(self.seen):
                return False
            asked = self._clock()
            self.held = self._leases.take(self._name, self.holder, self._ttl_s, self.seen)
            if self.held is None:
                return False
            self.until = asked + self._ttl_s * SAFE
            return True

    def renew(self) -> None:
        """Raises Superseded if the lease is lost, for its time or its epoch is over, and Unavailable if the
        store cannot be asked: the lease then holds until `until`."""
        with self._lock:
            asked = self._clock()
            renewed = self._leases.renew(self.held) if self.held and asked < self.until else None
            if renewed is None:
                self.held, self.until = None, 0.0
                raise Superseded("the lease was not renewed in time, and may be somebody else's")
            self.held, self.until = renewed, asked + self._ttl_s * SAFE

    def release(self) -> None:
        """Give it back; what it was needed for is over."""
        with self._lock:
            held, self.held, self.until = self.held, None, 0.0
            if held is not None:
                self._leases.release(held)

    def _may_take(self, lease: LeaseRecord | None) -> bool:
        if lease is None or lease.holder in (None, self.holder):
            return True
        return self._clock() - self._first_seen >= lease.ttl_s


def _state(lease: LeaseRecord) -> tuple[int, int]:
    return lease.epoch, lease.renewals


def _read(session: Session, name: str) -> LeaseRecord | None:
    row = session.execute(
        select(*Lease.__table__.c, (_clock(session) - Lease.renewed_at).label("age_s")).where(
            Lease.name == name
        )
    ).one_or_none()
    return None if row is None else LeaseRecord.model_validate(row)


def _held(lease: LeaseRecord) -> ColumnElement[bool]:
    return and_(Lease.name == lease.name, Lease.epoch == lease.epoch, Lease.holder == lease.holder)


def _changed(
    session: Session, which: ColumnElement[bool], values: Mapping[str, object]
) -> LeaseRecord | None:
    """Change the row that is so, if there is one: in one statement, so that nobody comes in between."""
    name = session.scalar(update(Lease).where(which).values(**values).returning(Lease.name))
    return None if name is None else _read(session, name)


def _clock(session: Session) -> ColumnElement[float]:
    """The database's: epoch seconds at this moment, not at the beginning of the transaction."""
    if session.get_bind().dialect.name == "sqlite":
        return (func.julianday(literal("now")) - _JULIAN_1970) * _DAY_S
    return cast(func.extract("epoch", func.clock_timestamp()), Double())
