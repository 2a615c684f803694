"""Admission: with fewer sessions than runs, each run gets its turn, and says behind whom it waits."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from ratchet.spec import deadlines, names
from ratchet.spec.admission import Limit
from ratchet.spec.faults import ActorLost
from ratchet.spec.home import Home
from ratchet.spec.ids import CLUSTER_QUEUE, OpKind, session_queue
from ratchet.spec.state import RunPhase
from ratchet.store import Store
from ratchet.store.admission import Admissions
from tests.workflows.conftest import CACHED
from workers.control_worker import control_worker
from workers.testing.scripted import Script, ScriptedCluster

Stack = Any  # tests/workflows/conftest.py: Bench

one_session = pytest.mark.parametrize("stack", [1], indirect=True)


def holders(stack: Stack) -> list[str]:
    return [record.run for record in Admissions(stack.store).queue().holders]


def waiting(stack: Stack) -> list[str]:
    return [record.run for record in Admissions(stack.store).queue().waiting]


def said(stack: Stack, run: str, topic: str = names.TOPIC_QUEUED) -> list[str]:
    return [event.message for event in stack.store.events_about(run, topic)]


async def queued(stack: Stack, run: str, **sections: dict[str, object]) -> Any:
    """A run of one step that has begun to wait."""
    handle = await stack.start(stack.spec(1, **sections), run)
    await stack.on_record(lambda: said(stack, run))
    return handle


async def holding(stack: Stack, run: str, steps: int = 1, **sections: dict[str, object]) -> Any:
    """A run that has a session, and goes on when the script's rollout of step 1 does."""
    handle = await stack.start(stack.spec(steps, **sections), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 1)
    return handle


@pytest.mark.parametrize("stack", [4], indirect=True)
async def test_fifty_runs_on_four_sessions_all_finish_in_order(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    many = 50 if CACHED else 14  # each task replaying its run, fifty take minutes
    runs = [f"{run}-{number:02}" for number in range(many)]
    handles = [await stack.start(stack.spec(1), name) for name in runs]
    await stack.on_record(lambda: len(waiting(stack)) == len(runs) - 4)
    first = holders(stack)
    line = [name for name in runs if name not in first]
    assert waiting(stack) == line  # as they were launched
    place = Admissions(stack.store).queue().place(line[-1])
    named, others = ", ".join(line[:5]), len(line) - 6
    assert str(place) == f"queued behind {len(line) - 1} runs: {named} and {others} more (priority 0)"
    await stack.on_record(lambda: stack.store.get_run(line[-1]).phase is RunPhase.QUEUED)

    rollout.set()
    results = [await handle.result() for handle in handles]
    assert {result.phase for result in results} == {RunPhase.COMPLETED}
    assert stack.cluster.most_open == 4
    served = [stack.cluster.opened.index(session_queue(name, 1)) for name in [*first, *line]]
    assert all(abs(turn - position) < 4 for position, turn in enumerate(served))  # four at a time
    assert not any(said(stack, name) for name in first)
    for name in line:
        (message,) = said(stack, name)
        assert message.startswith("queued behind ")
        assert any(other in message for other in runs if other != name)
        assert len(said(stack, name, names.TOPIC_ADMITTED)) == 1
    assert (holders(stack), waiting(stack)) == ([], [])


@one_session
async def test_a_run_that_is_stopped_in_the_queue_ends_at_once_and_leaves_nothing(
    stack: Stack, run: str
) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    holder = await holding(stack, f"{run}-a")
    handle = await queued(stack, f"{run}-b")
    assert said(stack, f"{run}-b") == [f"queued behind 1 run: {run}-a, which has the session (priority 0)"]
    await stack.update(f"{run}-b", names.UPDATE_STOP)
    result = await handle.result()
    assert (result.phase, result.step, result.checkpoint) == (RunPhase.STOPPED, 0, None)
    assert stack.store.get_run(f"{run}-b").phase is RunPhase.STOPPED
    assert session_queue(f"{run}-b", 1) not in [*stack.cluster.opened, *stack.cluster.closed]
    assert (holders(stack), waiting(stack)) == ([f"{run}-a"], [])
    rollout.set()
    await holder.result()


@one_session
async def test_a_run_that_is_paused_in_the_queue_gives_its_place_up_until_it_is_resumed(
    stack: Stack, run: str
) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    handles = [
        await holding(stack, f"{run}-a"),
        await queued(stack, f"{run}-b"),
        await queued(stack, f"{run}-c"),
    ]
    await stack.update(f"{run}-b", names.UPDATE_PAUSE)
    await stack.in_phase(f"{run}-b", RunPhase.PAUSED)
    assert waiting(stack) == [f"{run}-c"]
    await stack.update(f"{run}-b", names.UPDATE_RESUME)
    await stack.in_phase(f"{run}-b", RunPhase.QUEUED)
    assert waiting(stack) == [f"{run}-c", f"{run}-b"]
    rollout.set()
    assert [(await handle.result()).phase for handle in handles] == [RunPhase.COMPLETED] * 3
    assert stack.cluster.opened == [session_queue(f"{run}-{which}", 1) for which in "acb"]


@one_session
async def test_a_paused_run_keeps_its_session_and_its_turn(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    holder = await holding(stack, f"{run}-a", 2)
    await stack.update(f"{run}-a", names.UPDATE_PAUSE)
    rollout.set()
    await stack.in_phase(f"{run}-a", RunPhase.PAUSED)
    handle = await queued(stack, f"{run}-b")
    assert holders(stack) == [f"{run}-a"]
    await stack.update(f"{run}-a", names.UPDATE_RESUME)
    assert (await holder.result()).phase is RunPhase.COMPLETED
    assert (await handle.result()).phase is RunPhase.COMPLETED


@one_session
async def test_a_higher_priority_is_served_first(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    handles = [await holding(stack, f"{run}-a"), await queued(stack, f"{run}-b")]
    handles.append(await queued(stack, f"{run}-c", runtime={"priority": 1}))
    assert said(stack, f"{run}-c") == [f"queued behind 1 run: {run}-a, which has the session (priority 1)"]
    rollout.set()
    for handle in handles:
        await handle.result()
    assert stack.cluster.opened == [session_queue(f"{run}-{which}", 1) for which in "acb"]


@one_session
async def test_a_run_keeps_its_turn_over_recoveries_and_continuing_as_new(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
    cut = {"runtime": {"continue_as_new_every_steps": 1}, "checkpointing": {"every": 1}}
    holder = await holding(stack, f"{run}-a", 4, **cut)
    handle = await queued(stack, f"{run}-b")
    rollout.set()
    assert (await holder.result()).step == 4
    assert (await handle.result()).phase is RunPhase.COMPLETED
    assert stack.store.get_run(f"{run}-a").incarnation == 2
    last = max(place for place, op in enumerate(stack.script.carried_out) if op.startswith(f"{run}-a/"))
    assert not any(op.startswith(f"{run}-b/") for op in stack.script.carried_out[:last])
    assert said(stack, f"{run}-a") == []


@one_session
async def test_the_turn_of_a_run_that_was_terminated_goes_to_the_next(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ADMISSION_SWEEP", 0.1)
    stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    holder = await holding(stack, f"{run}-a")
    gone, handle = await queued(stack, f"{run}-b"), await queued(stack, f"{run}-c")
    await gone.terminate("a mistake")
    await holder.terminate("a mistake")
    await stack.on_record(lambda: holders(stack) == [f"{run}-c"])
    stack.script.holds.clear()
    stack.script.hold(OpKind.ROLLOUT_BATCH, 1).set()
    assert (await handle.result()).phase is RunPhase.COMPLETED


@one_session
async def test_a_run_that_failed_gives_its_turn_back(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    stack.script.faults[OpKind.ROLLOUT_BATCH, 1] = [ValueError("a defect")]
    holder = await holding(stack, f"{run}-a")
    handle = await queued(stack, f"{run}-b")
    rollout.set()
    with pytest.raises(Exception, match="failed"):
        await holder.result()
    assert (await handle.result()).phase is RunPhase.COMPLETED


@one_session
async def test_a_run_whose_place_was_lost_asks_again(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ADMISSION_WAIT", 1.0)
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    holder, handle = await holding(stack, f"{run}-a"), await queued(stack, f"{run}-b")
    Admissions(stack.store).release(f"{run}-b", handle.first_execution_run_id)
    await stack.on_record(lambda: waiting(stack) == [f"{run}-b"])
    rollout.set()
    assert [(await one.result()).phase for one in (holder, handle)] == [RunPhase.COMPLETED] * 2


@one_session
async def test_a_store_that_lost_a_run_counts_its_session_again(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    holder = await holding(stack, f"{run}-a")
    with sqlite3.connect(stack.home.root / "store.db") as store:
        store.execute("INSERT INTO forgetting VALUES (?)", [f"{run}-a"])
        for table in ("outbox", "events", "incarnations"):
            store.execute(f"DELETE FROM {table}")
        store.execute("DELETE FROM runs")
        store.execute("DELETE FROM admissions")
        store.execute("DELETE FROM forgetting")
    store.close()
    await stack.update(f"{run}-a", names.UPDATE_CHECKPOINT)  # something to write down
    await stack.on_record(lambda: holders(stack) == [f"{run}-a"])
    rollout.set()
    assert (await holder.result()).phase is RunPhase.COMPLETED
    assert holders(stack) == []


async def test_who_waits_keeps_its_place_while_no_control_worker_is_there(
    ratchet_temporal: WorkflowEnvironment, tmp_path: Path, run: str, bench: type[Stack]
) -> None:
    client, home, script = ratchet_temporal.client, Home(tmp_path), Script()
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    store.migrate()
    cluster = ScriptedCluster(client, script, home)
    stack, limit = bench(client, store, script, cluster, home), Limit(max_sessions=1)
    rollout = script.hold(OpKind.ROLLOUT_BATCH, 1)
    async with Worker(client, task_queue=CLUSTER_QUEUE, activities=cluster.all()):
        async with control_worker(client, store, home, limit=limit):
            handles = [await holding(stack, f"{run}-a")]
            handles += [await queued(stack, f"{run}-{which}") for which in "bc"]
        rollout.set()
        async with control_worker(client, store, home, limit=limit):
            for handle in handles:
                assert (await handle.result()).phase is RunPhase.COMPLETED
        assert cluster.opened == [session_queue(f"{run}-{which}", 1) for which in "abc"]
        await cluster.stop_all()
    assert [len(said(stack, f"{run}-{which}", names.TOPIC_ADMITTED)) for which in "abc"] == [0, 1, 1]
    store.close()
