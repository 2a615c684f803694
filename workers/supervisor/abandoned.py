"""Sessions whose run ended without closing them: terminated, timed out, or deleted with its history."""

import asyncio
import functools
import logging
from typing import Never

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from ratchet.spec.faults import RatchetError
from workers.supervisor.sessions import Sessions

logger = logging.getLogger(__name__)

LOOK_EVERY = 10.0


async def close_abandoned(sessions: Sessions, client: Client) -> Never:
    """Close them, until cancelled: their actors would hold memory and GPUs for nobody."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        for key in sessions.known():
            try:
                await sessions.close_if(key, functools.partial(_has_ended, client, key[0]))
            except (RatchetError, RPCError, OSError) as error:
                logger.warning("session %d of %s stays open for now: %s", key[1], key[0], error)


async def _has_ended(client: Client, run: str) -> bool:
    try:
        description = await client.get_workflow_handle(run).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return description.status is not WorkflowExecutionStatus.RUNNING
