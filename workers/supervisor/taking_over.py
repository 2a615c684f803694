"""Runs whose session was another supervisor's hear at once that it is lost, instead of by their timeouts."""

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.session import as_application_error
from ratchet.spec import names
from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.ids import CLUSTER_QUEUE, session_queue
from workers.orphans import fail_attempts, fail_orphans

logger = logging.getLogger(__name__)

LONGEST_POLL = 75.0
"""Seconds: Temporal ends a poll after 60, if its worker does not."""
LOOK_EVERY = 1.0

_RUNNING = f"WorkflowType = '{names.RUN_WORKFLOW}' AND ExecutionStatus = 'Running'"


async def take_over(client: Client, why: str) -> None:
    """Fail what supervisors and session workers before this one had begun; `why` is what runs are told. Call
    it before anything here polls. A run that is between two operations finds out by itself, after 30 s."""
    lost = as_application_error(Fault(kind=FaultKind.CLUSTER_LOST, message=why))
    with _as_far_as_it_goes():
        async for run in client.list_workflows(_RUNNING):
            await fail_orphans(client, run.id, CLUSTER_QUEUE, lambda _: True, "supervisor")
            count = await fail_attempts(client, run.id, _of_session(run.id, lost))
            logger.info("took over %s: ended %d attempts of its session", run.id, count)


async def take_back(client: Client) -> None:
    """Fail what is still handed to supervisors before this one: the polls of one that is frozen stay open
    for a while, and swallow what they get."""
    give_up = time.monotonic() + LONGEST_POLL
    while time.monotonic() < give_up:
        with _as_far_as_it_goes():
            async for run in client.list_workflows(_RUNNING):
                await fail_orphans(
                    client, run.id, CLUSTER_QUEUE, lambda worker: worker != client.identity, "supervisor"
                )
        await asyncio.sleep(LOOK_EVERY)


@contextmanager
def _as_far_as_it_goes() -> Generator[None, None, None]:
    try:
        yield
    except RPCError as error:
        logger.warning("not every run has been told that its session is another one's now: %s", error)


def _of_session(run: str, error: ApplicationError) -> Callable[[str], ApplicationError | None]:
    """The error for a worker of any session of the run."""
    queues = session_queue(run, 0).removesuffix("0")
    return lambda worker: error if worker.startswith(queues) else None
