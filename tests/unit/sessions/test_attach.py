"""Attaching: a lost host costs a wait and a join, never a second start."""

import asyncio

import pytest

from ratchet.sessions.attach import attach
from ratchet.spec.faults import DriverLost
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import AnyArgs, OpAnswer, OpState, SnapshotArgs

VERSION = WeightVersion(incarnation=1, step=0, digest="d")
ARGS = SnapshotArgs(op=OpId(run="r", incarnation=1, step=1, kind=OpKind.SNAPSHOT), version=VERSION, cursor=0)


class Client:
    """Says what a script tells it to; None stands for a lost host."""

    def __init__(self, *script: OpState | None, comes_back: bool = True) -> None:
        self.script = list(script)
        self.calls: list[str] = []
        self.comes_back = comes_back

    def _next(self, call: str) -> OpAnswer:
        self.calls.append(call)
        state = self.script.pop(0)
        if state is None:
            raise DriverLost("the session host is gone")
        return OpAnswer(op=str(ARGS.op), state=state, submits=self.calls.count("submit"))

    async def submit(self, args: AnyArgs, wait: float) -> OpAnswer:
        return self._next("submit")

    async def poll(self, op: OpId, wait: float) -> OpAnswer:
        return self._next("poll")

    async def cancel(self, op: OpId) -> OpAnswer:
        return self._next("cancel")

    async def available(self, deadline: float) -> None:
        self.calls.append("available")
        if not self.comes_back:
            raise DriverLost("no session host came up")


async def test_a_lost_host_is_waited_for_and_the_operation_joined() -> None:
    client = Client(OpState.RUNNING, OpState.RUNNING, None, OpState.RUNNING, OpState.DONE)
    fresh: list[OpAnswer] = []
    answer = await attach(client, ARGS, fresh.append)
    assert answer.state is OpState.DONE
    assert client.calls == ["submit", "poll", "poll", "available", "submit", "poll"]
    assert len(fresh) == 3  # one for every answer but the last, none for the loss


async def test_an_operation_nobody_knows_is_submitted_again() -> None:
    """The actors are still starting, or a conductor was replaced: its poll finds nothing."""
    client = Client(OpState.ABSENT, OpState.RUNNING, OpState.ABSENT, OpState.DONE)
    assert (await attach(client, ARGS, lambda _: None)).state is OpState.DONE
    assert client.calls == ["submit", "submit", "poll", "submit"]


async def test_a_host_that_never_comes_back_is_an_error() -> None:
    client = Client(None, comes_back=False)
    with pytest.raises(DriverLost, match="no session host came up"):
        await attach(client, ARGS, lambda _: None)


async def test_cancelling_the_caller_leaves_the_operation_alone() -> None:
    class Slow(Client):
        async def poll(self, op: OpId, wait: float) -> OpAnswer:
            self.calls.append("poll")
            await asyncio.Event().wait()
            raise AssertionError

    client = Slow(OpState.RUNNING)
    task = asyncio.create_task(attach(client, ARGS, lambda _: None))
    while "poll" not in client.calls:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "cancel" not in client.calls
