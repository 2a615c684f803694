"""Light activities of the control queue: they write what happened into the store."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ratchet.spec import names
from ratchet.spec.control import RecordRequest, RegisterRun
from ratchet.spec.faults import RatchetError, Unavailable
from ratchet.store import Store, code_versions


class ControlActivities:
    """Stateless but for the store. The store blocks, so each call has a thread of the loop's executor:
    a locked database must not hold up the workflow tasks of the same process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._code = code_versions()

    def all(self) -> list[Callable[..., Any]]:
        """Every activity, for a worker."""
        return [self.register_run, self.record]

    @activity.defn(name=names.REGISTER_RUN)
    async def register_run(self, request: RegisterRun) -> None:
        """Write a run's row. Fails with Conflict, for good, or Unavailable, to be retried."""
        at = activity.info().scheduled_time.timestamp()  # the same for every attempt
        with _named_failures():
            await asyncio.to_thread(self._store.register_run, request, at=at, code=self._code)

    @activity.defn(name=names.RECORD)
    async def record(self, request: RecordRequest) -> None:
        """Write rows about a run. Fails with Conflict, for good, or Unavailable, to be retried."""
        with _named_failures():
            await asyncio.to_thread(self._store.record, request)


@contextmanager
def _named_failures() -> Generator[None, None, None]:
    try:
        yield
    except RatchetError as error:
        retry = isinstance(error, Unavailable)
        raise ApplicationError(str(error), type=error.kind.value, non_retryable=not retry) from error
