"""The conductor's door: only its session's worker gets past it."""

import asyncio
from typing import Any

import pytest

from ratchet.sessions.conductor import Conductor
from ratchet.sessions.wire import WireClient, serve
from ratchet.spec.faults import ActorLost, Conflict
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.operations import OpAnswer, OpState, RestoreArgs
from workers.actors.conductor import _Desk
from workers.testing.engines import Script, ScriptedExecutor

SECRET = "open sesame"
ARGS = RestoreArgs(op=OpId(run="r", incarnation=1, step=0, kind=OpKind.RESTORE))


async def _dial(server: asyncio.Server) -> WireClient:
    host, port = server.sockets[0].getsockname()
    return WireClient(*await asyncio.open_connection(host, port), peer="conductor", lost=ActorLost)


async def test_a_stranger_is_refused_and_the_host_is_served() -> None:
    conductor = Conductor(ScriptedExecutor(Script(), Home()))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer, _Desk(conductor, SECRET).handle)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    submit: dict[str, Any] = {"args": ARGS.model_dump(mode="json"), "wait": 5.0}

    stranger = await _dial(server)
    with pytest.raises(Conflict, match="its session's worker only"):
        await stranger.call("submit", submit, deadline=5)
    with pytest.raises(Conflict, match="its session's worker only"):
        await stranger.call("hello", {"secret": "guess"}, deadline=5)
    assert (await conductor.poll(ARGS.op, 0)).state is OpState.ABSENT

    host = await _dial(server)
    await host.call("hello", {"secret": SECRET}, deadline=5)
    done = OpAnswer.model_validate(await host.call("submit", submit, deadline=5))
    assert (done.state, done.submits, done.starts) == (OpState.DONE, 1, 1)
    polled = OpAnswer.model_validate(await host.call("poll", {"op": str(ARGS.op), "wait": 5.0}, deadline=5))
    assert polled == done

    for client in (stranger, host):
        client.close()
    server.close()
