"""Admission: runs ask for a session, wait for their turn, and are told of it.

A run that waits costs no slot and no thread of any worker, and no heartbeats: its activity is left open and
completed by its id, by whichever control worker gives it its turn. So the death of a worker costs a run that
waits nothing, and neither do thousands of them cost the others.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Never

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.failures import named_failures
from ratchet.spec import deadlines, names
from ratchet.spec.admission import AdmitAnswer, AdmitRequest, Limit, ReleaseRequest
from ratchet.spec.faults import RatchetError
from ratchet.store.admission import AdmissionRecord, Admissions

logger = logging.getLogger(__name__)

_RUNNING = f"WorkflowType = '{names.RUN_WORKFLOW}' AND ExecutionStatus = 'Running'"
_ANSWERS = timedelta(seconds=deadlines.DIAGNOSE)


class AdmissionActivities:
    """The queue for sessions, as workflows see it, and the usher who serves it."""

    def __init__(self, admissions: Admissions, limit: Limit) -> None:
        self._admissions = admissions
        self._limit = limit.max_sessions
        self._changed = asyncio.Event()
        self._looked_at = 0.0

    def all(self) -> list[Callable[..., Any]]:
        """Every activity, for a worker."""
        return [self.admit, self.release]

    @activity.defn(name=names.ADMIT)
    async def admit(self, request: AdmitRequest) -> AdmitAnswer:
        """Let a run have a session, or give it a place in the queue. Fails with Unavailable, to be tried
        again."""
        info = activity.info()
        waiter = (str(info.workflow_run_id), info.activity_id) if request.waits else None
        with named_failures():
            answer = await asyncio.to_thread(self._admissions.ask, request, self._limit, waiter)
        if answer.place is not None:
            self._changed.set()
            if request.waits:
                activity.raise_complete_async()
        return answer

    @activity.defn(name=names.RELEASE)
    async def release(self, request: ReleaseRequest) -> None:
        """Take a run's place or its turn back. Fails with Unavailable, to be tried again."""
        with named_failures():
            await asyncio.to_thread(self._admissions.release, request.run, request.execution)
        self._changed.set()

    # --- the usher

    async def usher(self, client: Client) -> Never:
        """Give turns and tell of them: when something changes here, and every so often what another worker
        left undone, and what runs hold that ended without a word. Until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._serve(client)
            except (RatchetError, RPCError) as error:
                logger.warning("runs wait a little longer for their turn: %s", error)
            except Exception:  # whatever it was, runs wait for somebody who goes on
                logger.exception("runs wait a little longer for their turn")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadlines.ADMISSION_SWEEP):
                    await self._changed.wait()

    async def _serve(self, client: Client) -> None:
        queue = await asyncio.to_thread(self._admissions.queue)
        if queue.waiting and time.monotonic() - self._looked_at >= deadlines.ADMISSION_SWEEP:
            for record in await _ended(client, [*queue.holders, *queue.waiting]):
                logger.info("run %s has ended: its place is taken back", record.run)
                await asyncio.to_thread(self._admissions.release, record.run, record.execution)
            self._looked_at = time.monotonic()
        if queue.waiting or any(record.waiter_activity for record in queue.holders):
            for record in await asyncio.to_thread(self._admissions.give_turns, self._limit):
                await _tell(client, record)
                await asyncio.to_thread(self._admissions.told, record)


async def _ended(client: Client, records: Sequence[AdmissionRecord]) -> list[AdmissionRecord]:
    """Those whose run has no open workflow. (One that was begun again meanwhile asks anew, for itself.)"""
    known = {execution.id async for execution in client.list_workflows(_RUNNING, rpc_timeout=_ANSWERS)}
    # What is listed may be a moment old: who is not in it is looked at.
    return [record for record in records if record.run not in known and await _has_ended(client, record.run)]


async def _has_ended(client: Client, run: str) -> bool:
    try:
        description = await client.get_workflow_handle(run).describe(rpc_timeout=_ANSWERS)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return description.status is not WorkflowExecutionStatus.RUNNING


async def _tell(client: Client, record: AdmissionRecord) -> None:
    """End the activity in which a run waits."""
    assert record.waiter_activity is not None, "nobody else is to be told"
    waiter = client.get_async_activity_handle(
        workflow_id=record.run, run_id=record.waiter_execution, activity_id=record.waiter_activity
    )
    try:
        await waiter.complete(AdmitAnswer(), rpc_timeout=_ANSWERS)
    except RPCError as error:
        # Not there: it was told before, or does not wait any more, or its next attempt asks by itself.
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
