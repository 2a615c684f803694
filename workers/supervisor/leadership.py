"""Being the active one of several supervisors: a lease in the store they share, won, kept and given back."""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable

from ratchet.spec.faults import Conflict, Unavailable
from ratchet.spec.home import Home
from ratchet.store import Contender, LeaseRecord, Leases, Store, Superseded
from workers.fence import Fence, clock
from workers.supervisor.state import LeaseView

logger = logging.getLogger(__name__)

ACTIVE = "active-supervisor"
"""The name of the lease: one for everybody who shares a store."""

ASK_WITHIN = 1.0
"""For the store to answer: a renewal that hangs keeps the next one from coming through."""
LOOK_EVERY = 1.0
"""While standing by: a lease that was given back is seen this soon."""
RENEWALS = 20
"""In the time of a lease."""
STOP_SHARE = 0.1
"""Of the time of a lease: for the supervisor to end its stack by itself, before the guard ends both."""


def check_nobody_leads(home: Home) -> None:
    """Raises Conflict if supervisors stand by for each other around this store and one is active, for one
    without a lease would be a second. Raises Unavailable, too."""
    store = Store(home.store_url)
    store.migrate()
    lease = Leases(store).read(ACTIVE)
    store.close()
    if lease and lease.holder and lease.age_s < lease.ttl_s:
        raise Conflict(
            f"{lease.holder} is the active supervisor of this store: add --standby to wait for its place, or "
            "leave out ray with --parts"
        )


class Leadership:
    """Whether this supervisor is the active one. For one event loop."""

    def __init__(self, home: Home, ttl_s: float, changed: Callable[[], None]) -> None:
        """`changed` is called when there is something new to `view`."""
        self.fence: Fence | None = None
        """Of the epoch that was won last."""
        self.took_over: str | None = None
        """From whom it was won, and why, in words; None if nobody had held it before."""
        self._home, self._ttl_s, self._changed = home, ttl_s, changed
        self._store = Store(home.store_url, busy_s=ASK_WITHIN)
        holder = f"{socket.gethostname()}:{home.root} (pid {os.getpid()}, {uuid.uuid4().hex[:8]})"
        self._contender = Contender(Leases(self._store), ACTIVE, holder, ttl_s, clock)
        self._confirmed_at = 0.0
        self._store_away = False

    async def prepare(self) -> None:
        """Have tables in the store. Raises Unavailable."""
        await asyncio.to_thread(self._store.migrate)

    async def win(self) -> None:
        """Returns when this is the active supervisor."""
        while True:
            before = self._contender.seen
            try:
                won = await asyncio.to_thread(self._contender.contend)
            except Unavailable as error:
                if not self._store_away:
                    logger.warning("standing by, without sight of the lease: %s", error)
                self._store_away = True
            else:
                self._store_away, self._confirmed_at = False, time.time()
                if won:
                    break
                seen = self._contender.seen
                if seen and (before is None or before.epoch != seen.epoch):
                    logger.info("standing by: %s is active, in epoch %d", seen.holder, seen.epoch)
                self._changed()
            await asyncio.sleep(LOOK_EVERY)
        epoch = self._contender.held.epoch if self._contender.held else 0
        self.fence = Fence(self._home.root / "fence", epoch)
        self.took_over = self._how_it_was_won(self._contender.seen)
        self._confirmed()
        logger.warning("active, in epoch %d: %s", epoch, self.took_over or "nobody was before")

    async def keep(self) -> str:
        """Renew the lease until it is lost: why. What it was needed for has to be ended at once, then."""
        reason = "this process was frozen, or too slow"
        while (left := self._contender.until - clock() - self._ttl_s * STOP_SHARE) > 0:
            renewal = asyncio.create_task(asyncio.to_thread(self._contender.renew))
            await asyncio.wait([renewal], timeout=left)
            if not renewal.done():
                renewal.add_done_callback(lambda late: late.cancelled() or late.exception())
                reason = "the store does not answer"
                continue
            try:
                renewal.result()
            except Superseded as error:
                return str(error)
            except Unavailable as error:
                reason = str(error)
                logger.warning("the lease was not renewed: %s", error)
            else:
                self._confirmed()
            await asyncio.sleep(self._ttl_s / RENEWALS)
        return f"the lease was not renewed in time: {reason}"

    async def resign(self) -> None:
        """Give the lease back; nothing that needed it runs any more."""
        try:
            await asyncio.to_thread(self._contender.release)
        except Unavailable as error:
            logger.warning("the lease cannot be given back, and runs out by itself: %s", error)

    def view(self) -> LeaseView:
        """What `status` shows."""
        held, seen = self._contender.held, self._contender.seen
        shown = held or seen
        return LeaseView(
            role="active" if held else "standby",
            epoch=shown.epoch if shown else 0,
            holder=shown.holder if shown else None,
            confirmed_at=self._confirmed_at,
            age_s=shown.age_s if shown else 0.0,
            ttl_s=shown.ttl_s if shown else self._ttl_s,
            took_over=self.took_over if held else None,
        )

    def _confirmed(self) -> None:
        assert self.fence
        self.fence.extend(self._contender.until)
        self._confirmed_at = time.time()
        self._changed()

    def _how_it_was_won(self, before: LeaseRecord | None) -> str | None:
        if before is None:
            return None
        if before.holder == self._contender.holder:
            return "the store, and with it the lease, had been out of reach"
        if before.holder is None:
            return "the active supervisor had stopped, and another one took its place"
        silent = f"{before.holder} had been silent for {before.ttl_s:.0f} s"
        return f"{silent}, and another supervisor took its place"
