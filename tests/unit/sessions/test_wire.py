"""The wire between session worker and host."""

import asyncio
import socket
from typing import Any

import pytest

from ratchet.sessions.wire import MAX_FRAME, WireClient, serve
from ratchet.spec.faults import ActorLost, DriverLost, Unavailable


async def _pair(handler: Any) -> tuple[WireClient, asyncio.Task[None]]:
    ours, theirs = socket.socketpair()
    server = asyncio.create_task(serve(*await asyncio.open_connection(sock=theirs), handler))
    return WireClient(*await asyncio.open_connection(sock=ours)), server


async def test_calls_overlap_and_find_their_own_answers() -> None:
    async def handler(method: str, params: dict[str, Any]) -> Any:
        await asyncio.sleep(params["wait"])
        return [method, params["value"]]

    client, server = await _pair(handler)
    calls = [client.call("echo", {"wait": 0.02 - n / 1000, "value": n}, deadline=5) for n in range(20)]
    assert await asyncio.gather(*calls) == [["echo", n] for n in range(20)]
    client.close()
    await asyncio.wait_for(server, 5)


async def test_a_message_longer_than_a_stream_readers_limit_arrives() -> None:
    async def handler(_: str, params: dict[str, Any]) -> Any:
        return params["text"] * 2

    client, _server = await _pair(handler)
    text = "x" * 200_000
    assert await client.call("double", {"text": text}, deadline=5) == text * 2
    with pytest.raises(ValueError, match="does not fit"):
        await client.call("double", {"text": "x" * MAX_FRAME}, deadline=5)
    client.close()


async def test_faults_keep_their_type_and_role() -> None:
    async def handler(_: str, __: dict[str, Any]) -> Any:
        raise ActorLost("the trainer is gone", role="trainer")

    client, _server = await _pair(handler)
    with pytest.raises(ActorLost, match="the trainer is gone") as caught:
        await client.call("submit", {}, deadline=5)
    assert caught.value.role == "trainer"
    client.close()


async def test_a_peer_that_goes_away_fails_every_call_at_once() -> None:
    async def handler(_: str, __: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    client, server = await _pair(handler)
    calls = [asyncio.create_task(client.call("poll", {}, deadline=3600)) for _ in range(3)]
    await asyncio.sleep(0.01)
    server.cancel()
    client._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    for call in calls:
        with pytest.raises(DriverLost):
            await asyncio.wait_for(call, 5)
    assert await client.closed_within(5)
    with pytest.raises(DriverLost):
        await client.call("poll", {}, deadline=3600)


async def test_a_silent_peer_costs_the_deadline_and_no_more() -> None:
    async def handler(_: str, __: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    client, _server = await _pair(handler)
    with pytest.raises(Unavailable, match=r"did not answer ping"):
        await client.call("ping", {}, deadline=0.05)
    client.close()
