"""Events as they happen (server-sent events), from the outbox: after a reconnect exactly where one was."""

import asyncio
import logging
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.spec.views import EventView
from ratchet.store import NoticeRecord, Store

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.2
AWAY_LOOK_EVERY = 1.0
PAGE = 500


class Feed:
    """One look at the store for everybody who follows; nobody follows: no look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = 0
        self._followers = 0
        self._changed = asyncio.Condition()
        self._closed = False

    async def watch(self) -> None:
        """Look for news until cancelled."""
        while True:
            pause = LOOK_EVERY
            if self._followers:
                try:
                    await self._look()
                except Unavailable as error:
                    logger.warning("cannot look for events: %s", error)
                    pause = AWAY_LOOK_EVERY
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """End every stream: whoever follows comes back to the next API."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def newest(self) -> int:
        return await run_in_threadpool(self._store.newest_notice)

    async def stream(self, run: str | None, after: int, seconds: float) -> AsyncIterator[bytes]:
        """Events with an id above `after`, old ones first and then as they come, for so many seconds. The
        first thing said is `after` itself, so that even who has seen nothing knows where to go on."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._followers += 1
        try:
            yield f"retry: 1000\nid: {after}\n\n".encode()
            while True:
                # Read first: what is committed after this look is above it, and wakes us up.
                looked = self._newest
                try:
                    page = await run_in_threadpool(self._store.notices, run, after=after, limit=PAGE)
                except Unavailable:
                    page = []
                if page:
                    after = page[-1].id
                    yield b"".join(map(_event, page))
                if len(page) == PAGE:
                    continue
                left = end - loop.time()
                if left <= 0 or self._closed:
                    return
                if not await self._news(looked, min(left, deadlines.EVENTS_SILENT)):
                    yield b":\n\n"  # so that proxies and clients see that it lives
        finally:
            self._followers -= 1

    async def _look(self) -> None:
        newest = await self.newest()
        if newest != self._newest:
            async with self._changed:
                self._newest = newest
                self._changed.notify_all()

    async def _news(self, looked: int, wait: float) -> bool:
        """Whether something was told beyond that look, within so many seconds."""
        try:
            async with asyncio.timeout(wait), self._changed:
                await self._changed.wait_for(lambda: self._closed or self._newest != looked)
                return True
        except TimeoutError:
            return False


def _event(notice: NoticeRecord) -> bytes:
    view = EventView.model_validate(notice, from_attributes=True)
    return f"id: {notice.id}\nevent: {notice.kind}\ndata: {view.model_dump_json()}\n\n".encode()
