"""Making actors, and ending them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray

from ratchet.spec import deadlines
from ratchet.spec.faults import ActorLost, Unavailable
from workers.actors.base import SessionConfig, actor_id, existing, get_or_create, has_come_up
from workers.actors.calls import ask

PAUSE = 0.2


async def found_or_made(
    actor: Any, config: SessionConfig, role: str, begin: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """The session's actor of that role, made if there is none, and what its `begin` answers.

    One that died unnoticed still has the name for a while, and a frozen one keeps it: it is ended, and
    another made. Raises what kept it from coming up; ActorLost if that was its death, again and again.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + deadlines.ACTOR_START
    while True:
        handle = await asyncio.to_thread(get_or_create, actor, config, role)
        # One that had come up before has its answer ready, unless it is frozen.
        ready = has_come_up(config, role, actor_id(handle))
        within = deadlines.ENGINE_SILENT if ready else deadlines.ACTOR_START
        try:
            return handle, await ask(begin(handle), role, within)
        except (ActorLost, Unavailable) as lost:
            if lost.role != role or loop.time() > end:
                raise
            await asyncio.to_thread(kill, config, role)
            await asyncio.sleep(PAUSE)


def kill(config: SessionConfig, role: str) -> None:
    """End the actor; its name is free when this returns. No such actor is no error."""
    with suppress(ValueError):
        ray.kill(existing(config, role), no_restart=True)
