"""Operations are handles: whatever is submitted, however often, is carried out once."""

import asyncio
from collections.abc import Callable

import pytest

from ratchet.sessions.conductor import Conductor
from ratchet.spec import deadlines
from ratchet.spec.faults import (
    ActorLost,
    Cancelled,
    Conflict,
    FaultKind,
    InfraFault,
    Poisoned,
    RatchetError,
    SpecError,
)
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    OpState,
    RolloutArgs,
    SnapshotArgs,
)
from ratchet.spec.receipts import AnyReceipt, SnapshotReceipt

VERSION = WeightVersion(incarnation=1, step=0, digest="d")


class Engines:
    """An Executor whose operations wait for the test, and which writes down what began and ended."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, list[RatchetError]] = {}
        self.done: list[tuple[OpId, str, AnyReceipt]] = []

    def gate(self, op: OpId) -> asyncio.Event:
        return self.gates.setdefault(str(op), asyncio.Event())

    async def execute(
        self, args: AnyArgs, progress: Callable[[str], None], cancelled: asyncio.Event
    ) -> AnyReceipt:
        self.began.append(str(args.op))
        progress("half-way")
        gate = asyncio.create_task(self.gate(args.op).wait())
        stop = asyncio.create_task(cancelled.wait())
        await asyncio.wait([gate, stop], return_when=asyncio.FIRST_COMPLETED)
        if cancelled.is_set():
            raise Cancelled("given up")
        if errors := self.errors.get(str(args.op)):
            raise errors.pop(0)
        self.ended.append(str(args.op))
        return SnapshotReceipt(op=str(args.op), version=VERSION, num_bytes=1)

    async def abandon(self, args: AnyArgs) -> None:
        raise AssertionError(f"{args.op} was told to end, and should have")

    async def cancel(self, args: AnyArgs) -> None:
        pass

    async def recover(self) -> list[tuple[OpId, str, AnyReceipt]]:
        return self.done


def op(step: int, kind: OpKind, incarnation: int = 1) -> OpId:
    return OpId(run="r", incarnation=incarnation, step=step, kind=kind)


def snapshot(step: int, incarnation: int = 1, cursor: int = 0) -> SnapshotArgs:
    return SnapshotArgs(op=op(step, OpKind.SNAPSHOT, incarnation), version=VERSION, cursor=cursor)


def rollout(step: int) -> RolloutArgs:
    return RolloutArgs(op=op(step, OpKind.ROLLOUT_BATCH), cursor_start=0, cursor_end=1, version=VERSION)


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def conductor(engines: Engines) -> Conductor:
    return Conductor(engines)


async def test_submitting_again_joins_and_counts(conductor: Conductor, engines: Engines) -> None:
    for _ in range(3):
        await conductor.submit(snapshot(1))
    engines.gate(snapshot(1).op).set()
    answer = await conductor.poll(snapshot(1).op, 5)
    assert answer.state is OpState.DONE
    assert answer.receipt is not None
    assert (answer.receipt.submits, answer.receipt.starts) == (3, 1)
    assert engines.began == ["r/1/1/snapshot"]
    joined = await conductor.submit(snapshot(1))
    assert (joined.state, joined.submits, joined.starts) == (OpState.DONE, 4, 1)


async def test_the_same_operation_with_other_arguments_is_a_conflict(conductor: Conductor) -> None:
    await conductor.submit(snapshot(1))
    with pytest.raises(Conflict, match="other arguments"):
        await conductor.submit(snapshot(1, cursor=7))


async def test_poll_is_answered_the_moment_it_ends_and_within_its_wait(
    conductor: Conductor, engines: Engines
) -> None:
    await conductor.submit(snapshot(1))
    running = await conductor.poll(snapshot(1).op, 0.01)
    assert (running.state, running.progress) == (OpState.RUNNING, "half-way")
    waiting = asyncio.create_task(conductor.poll(snapshot(1).op, 3600))
    await asyncio.sleep(0)
    engines.gate(snapshot(1).op).set()
    assert (await asyncio.wait_for(waiting, 5)).state is OpState.DONE
    assert (await conductor.poll(op(9, OpKind.REFIT), 3600)).state is OpState.ABSENT


async def test_an_infrastructure_fault_starts_again_until_the_limit(
    conductor: Conductor, engines: Engines
) -> None:
    args = snapshot(1)
    engines.gate(args.op).set()
    engines.errors[str(args.op)] = [InfraFault("disk on fire")] * (deadlines.MAX_STARTS + 3)
    for start in range(1, deadlines.MAX_STARTS + 3):
        await conductor.submit(args)
        answer = await conductor.poll(args.op, 5)
        assert answer.fault is not None
        assert answer.fault.kind is FaultKind.INFRA
        assert answer.starts == min(start, deadlines.MAX_STARTS)


async def test_any_other_fault_is_the_answer(conductor: Conductor, engines: Engines) -> None:
    args = snapshot(1)
    engines.gate(args.op).set()
    engines.errors[str(args.op)] = [SpecError("policy.model is nonsense")]
    for _ in range(3):
        await conductor.submit(args)
        answer = await conductor.poll(args.op, 5)
        assert (answer.state, answer.starts) == (OpState.FAILED, 1)
        assert answer.fault is not None
        assert answer.fault.kind is FaultKind.SPEC


async def test_a_fault_past_the_point_of_no_return_poisons(conductor: Conductor, engines: Engines) -> None:
    args = snapshot(1)
    engines.gate(args.op).set()
    engines.errors[str(args.op)] = [Poisoned("the update failed half-way")]
    await conductor.submit(args)
    assert (await conductor.poll(args.op, 5)).state is OpState.POISONED


async def test_the_engine_lane_works_in_order_while_rollouts_and_writes_go_on(
    conductor: Conductor, engines: Engines
) -> None:
    first, second = snapshot(1), snapshot(2)
    third = EvaluateArgs(op=op(2, OpKind.EVALUATE), version=VERSION, num_problems=1)
    write = CommitArgs(op=op(1, OpKind.COMMIT_CHECKPOINT), version=VERSION, cursor=0, hf_export=False)
    for args in (first, second, third, write, rollout(3)):
        await conductor.submit(args)
    await conductor.poll(first.op, 0.02)
    assert set(engines.began) == {str(first.op), str(write.op), str(rollout(3).op)}
    for args in (first, second, third):
        engines.gate(args.op).set()
    await conductor.poll(third.op, 5)
    assert engines.ended == [str(first.op), str(second.op), str(third.op)]


async def test_cancel_ends_a_running_operation_and_leaves_an_ended_one(
    conductor: Conductor, engines: Engines
) -> None:
    await conductor.submit(rollout(1))
    await conductor.poll(rollout(1).op, 0.01)
    await conductor.cancel(rollout(1).op)
    answer = await conductor.poll(rollout(1).op, 5)
    assert answer.fault is not None
    assert answer.fault.kind is FaultKind.CANCELLED

    engines.gate(rollout(2).op).set()
    await conductor.submit(rollout(2))
    await conductor.poll(rollout(2).op, 5)
    assert (await conductor.cancel(rollout(2).op)).state is OpState.DONE
    assert (await conductor.cancel(op(9, OpKind.REFIT))).state is OpState.ABSENT


async def test_law_13_an_old_incarnation_starts_nothing(conductor: Conductor, engines: Engines) -> None:
    await conductor.submit(snapshot(1, incarnation=2))
    with pytest.raises(Conflict, match="incarnation 1"):
        await conductor.submit(snapshot(2, incarnation=1))
    assert engines.began == []


async def test_law_13_a_new_incarnation_ends_what_an_old_one_still_does(
    conductor: Conductor, engines: Engines
) -> None:
    await conductor.submit(rollout(1))
    await conductor.submit(snapshot(0))
    engines.gate(op(1, OpKind.SNAPSHOT, 2)).set()
    await conductor.submit(snapshot(1, incarnation=2))
    assert (await conductor.poll(op(1, OpKind.SNAPSHOT, 2), 5)).state is OpState.DONE
    for old in (op(1, OpKind.ROLLOUT_BATCH), op(0, OpKind.SNAPSHOT)):
        answer = await conductor.poll(old, 5)
        assert answer.state is OpState.FAILED
        assert answer.fault
        assert answer.fault.kind is FaultKind.CANCELLED


async def test_a_new_conductor_reads_its_log_back_from_the_engines(engines: Engines) -> None:
    args = snapshot(4)
    receipt = SnapshotReceipt(op=str(args.op), version=VERSION, num_bytes=9)
    engines.done = [(args.op, args.digest(), receipt)]
    conductor = Conductor(engines)
    await conductor.recover()
    answer = await conductor.submit(args)
    assert answer.state is OpState.DONE
    assert answer.receipt is not None
    assert answer.receipt.model_dump()["num_bytes"] == 9
    assert engines.began == []
    with pytest.raises(Conflict):
        await conductor.submit(snapshot(4, cursor=1))


async def test_a_cancel_that_reaches_no_engine_ends_the_operation_all_the_same(
    conductor: Conductor, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(_: AnyArgs) -> None:
        raise ActorLost("it is being replaced", role="generator")

    monkeypatch.setattr(engines, "cancel", cancel)
    await conductor.submit(rollout(1))
    await conductor.cancel(rollout(1).op)
    answer = await conductor.poll(rollout(1).op, 5)
    assert answer.fault
    assert answer.fault.kind is FaultKind.CANCELLED


async def test_a_cancel_that_comes_before_its_operation_is_not_forgotten(
    conductor: Conductor, engines: Engines
) -> None:
    assert (await conductor.cancel(rollout(1).op)).state is OpState.ABSENT
    await conductor.submit(rollout(1))
    answer = await conductor.poll(rollout(1).op, 5)
    assert answer.fault
    assert answer.fault.kind is FaultKind.CANCELLED
    assert engines.began == []


async def test_what_an_old_incarnation_is_stuck_in_is_ended(
    conductor: Conductor, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def stuck(args: AnyArgs, _progress: Callable[[str], None], _cancelled: asyncio.Event) -> AnyReceipt:
        if args.op.incarnation == 1:
            await ended.wait()
            raise ActorLost("it was ended", role="trainer")
        return SnapshotReceipt(op=str(args.op), version=VERSION, num_bytes=1)

    async def abandon(args: AnyArgs) -> None:
        assert args.op == op(1, OpKind.SNAPSHOT)
        ended.set()

    monkeypatch.setattr(engines, "execute", stuck)
    monkeypatch.setattr(engines, "abandon", abandon)
    monkeypatch.setattr(deadlines, "OVER_GRACE", 0.05)
    await conductor.submit(snapshot(1))
    await conductor.submit(snapshot(1, incarnation=2))
    assert (await conductor.poll(op(1, OpKind.SNAPSHOT, 2), 5)).state is OpState.DONE
