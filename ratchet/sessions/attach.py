"""Attaching to an operation: submit it, or join it if it is known, and wait for its receipt."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ratchet.spec import deadlines
from ratchet.spec.faults import DriverLost
from ratchet.spec.ids import OpId
from ratchet.spec.operations import AnyArgs, OpAnswer, OpState


class OperationsClient(Protocol):
    """The conductor, as seen from far away."""

    async def submit(self, args: AnyArgs, wait: float) -> OpAnswer:
        """Start or join, then poll: one round trip for an operation that ends within `wait` seconds."""
        ...

    async def poll(self, op: OpId, wait: float) -> OpAnswer: ...

    async def cancel(self, op: OpId) -> OpAnswer: ...

    async def available(self, deadline: float) -> None:
        """Returns once calls can be made. Raises DriverLost after `deadline` seconds."""
        ...


async def attach(client: OperationsClient, args: AnyArgs, on_answer: Callable[[OpAnswer], None]) -> OpAnswer:
    """Follow an operation to its end and return the last answer, `done` or not.

    `on_answer` is called with every fresh answer while it goes on, and only then, so that a heartbeat sent
    from it means that the whole way to the conductor works. Not with the last one: a heartbeat just before a
    completion is a write of the server's that holds the completion up. A lost host costs a wait for the next
    one and a join. Being cancelled leaves the operation alone: only `cancel` ends one.
    """
    submitted = False
    while True:
        try:
            if submitted:
                answer = await client.poll(args.op, deadlines.POLL_WAIT)
            else:
                answer = await client.submit(args, deadlines.POLL_WAIT)
            # Absent: the actors are still starting, or a conductor was replaced and forgot it.
            submitted = answer.state is not OpState.ABSENT
        except DriverLost:
            # A pause too: a loop that never waits would keep from turning whatever finds out that the wire
            # has broken.
            await asyncio.sleep(deadlines.RETRY_INTERVAL)
            await client.available(deadlines.HOST_START)
            submitted = False
            continue
        if answer.ended:
            return answer
        on_answer(answer)
        await asyncio.sleep(0)
