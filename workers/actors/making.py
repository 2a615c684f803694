"""Making actors, and ending them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray

from ratchet.spec import deadlines
from ratchet.spec.faults import ActorLost
from workers.actors.base import SessionConfig, existing, get_or_create
from workers.actors.calls import ask

PAUSE = 0.2


async def found_or_made(
    actor: Any, config: SessionConfig, role: str, begin: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """The session's actor of that role, made if there is none, and what its `begin` answers.

    One that died unnoticed still has the name for a while; it is ended, and another made. Raises what kept it
    from coming up; ActorLost if that was its death, again and again.
    """
    end = asyncio.get_running_loop().time() + deadlines.ACTOR_START
    while True:
        handle = await asyncio.to_thread(get_or_create, actor, config, role)
        try:
            return handle, await ask(begin(handle), role, deadlines.ACTOR_START)
        except ActorLost as lost:
            if lost.role != role or asyncio.get_running_loop().time() > end:
                raise
            await asyncio.to_thread(kill, config, role)
            await asyncio.sleep(PAUSE)


def kill(config: SessionConfig, role: str) -> None:
    """End the actor; its name is free when this returns. No such actor is no error."""
    with suppress(ValueError):
        ray.kill(existing(config, role), no_restart=True)
