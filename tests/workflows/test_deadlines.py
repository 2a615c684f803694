"""Deadlines count the time that the stack was down: the first that passes ends nothing, the second does."""

import asyncio
import sqlite3
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError

from ratchet.spec import deadlines, names
from ratchet.spec.control import SessionInfo, SessionRequest
from ratchet.spec.ids import OpKind
from ratchet.spec.state import RunPhase
from workflows.failures import MAX_RECOVERIES

Stack = Any  # tests/workflows/conftest.py: Bench


async def scheduled(stack: Stack, run: str, activity: str, times: int) -> None:
    """Returns once an activity was scheduled so many times: its deadline passed in between."""
    async with asyncio.timeout(60):
        while True:
            history = await stack.client.get_workflow_handle(run).fetch_history()
            found = [
                event
                for event in history.events
                if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
                and event.activity_task_scheduled_event_attributes.activity_type.name == activity
            ]
            if len(found) >= times:
                return
            await asyncio.sleep(0.05)


async def test_an_operation_whose_deadline_passed_is_joined_once_more(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(deadlines.OPERATION, OpKind.TRAIN_STEP, 2.0)
    train = stack.script.hold(OpKind.TRAIN_STEP, 1)
    handle = await stack.start(stack.spec(1), run)
    await scheduled(stack, run, OpKind.TRAIN_STEP.value, 2)
    train.set()
    assert (await handle.result()).phase is RunPhase.COMPLETED
    assert stack.trained(run) == [(1, 1)]
    (step,) = stack.store.steps(run)
    assert (step.train_starts, step.incarnation) == (1, 1)


async def test_an_operation_that_hangs_is_left_for_another_incarnation(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(deadlines.OPERATION, OpKind.TRAIN_STEP, 1.0)
    train = stack.script.hold(OpKind.TRAIN_STEP, 1)
    handle = await stack.start(stack.spec(1), run)
    await stack.in_phase(run, RunPhase.RECOVERING)
    train.set()
    assert (await handle.result()).phase is RunPhase.COMPLETED
    assert [row.number for row in stack.store.incarnations(run)] == [1, 2]
    assert stack.trained(run)[-1] == (2, 1)
    (incident,) = stack.store.incidents(run)
    assert "train_step ended by its schedule_to_close deadline, twice in a row" in incident.data["cause"]


async def test_a_store_that_was_away_for_a_deadline_ends_nothing(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 1)
    handle = await stack.start(stack.spec(1), run)
    await stack.begun(OpKind.TRAIN_STEP, 1)
    monkeypatch.setattr(deadlines, "RECORD_SCHEDULE_TO_CLOSE", 2.0)
    holder = sqlite3.connect(stack.home.root / "store.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    history = await handle.fetch_history()
    before = sum(
        event.activity_task_scheduled_event_attributes.activity_type.name == names.RECORD
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    )
    train.set()
    # The step, its checkpoint and the last state of the run, and all of it once more.
    await scheduled(stack, run, names.RECORD, before + 3)
    holder.execute("ROLLBACK")
    holder.close()
    assert (await handle.result()).phase is RunPhase.COMPLETED
    assert [row.step for row in stack.store.steps(run)] == [1]


@pytest.mark.parametrize("late", [1, None])
async def test_a_supervisor_that_was_away_ends_nothing_and_one_that_stays_away_ends_in_words(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch, late: int | None
) -> None:
    """`late`: how many times a session is opened too late; None: always."""
    monkeypatch.setattr(deadlines, "OPEN_SESSION", 0.1)
    monkeypatch.setattr(deadlines, "CLOSE_SESSION", 0.1)
    monkeypatch.setattr(deadlines, "RECOVERY_PAUSE", 0.01)
    restart, asked = stack.cluster.restart_worker, 0

    async def slowly(request: SessionRequest) -> SessionInfo:
        nonlocal asked
        asked += 1
        if late is None or asked <= late:
            await asyncio.sleep(1.0)
        return await restart(request)

    monkeypatch.setattr(stack.cluster, "restart_worker", slowly)
    handle = await stack.start(stack.spec(1), run)
    if late:
        assert (await handle.result()).phase is RunPhase.COMPLETED
        return
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    fault = stack.store.get_run(run).fault
    assert f"{MAX_RECOVERIES} recoveries in a row led to no step" in fault.message
    assert "open_session ended by its" in fault.message
