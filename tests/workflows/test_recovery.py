"""What is lost costs re-training, and nothing else: the run goes back to a checkpoint by itself."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from ratchet.spec import deadlines, names
from ratchet.spec.control import RegisterRun, SessionRequest
from ratchet.spec.faults import (
    ActorLost,
    ClusterLost,
    FaultKind,
    Poisoned,
    RatchetError,
    StorageFault,
)
from ratchet.spec.ids import CONTROL_QUEUE, OpKind, session_queue
from ratchet.spec.receipts import Recovered
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import ForkOrigin, RunPhase, RunState
from workers.testing.scripted import scripted_stack

Stack = Any  # tests/workflows/conftest.py: Bench

EVERY = {"every": 2}
V1 = Path(__file__).parents[1] / "states" / "run-input-v1.json"


COMPLETED, FAILED = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED


async def in_history(handle: WorkflowHandle[Any, Any], activity: str, how: EventType.ValueType) -> None:
    """Wait until the workflow's history says that the activity has ended so."""
    async with asyncio.timeout(30):
        while True:
            history = (await handle.fetch_history()).events
            scheduled = {
                event.event_id
                for event in history
                if event.activity_task_scheduled_event_attributes.activity_id == activity
            }
            ends = [event for event in history if event.event_type == how]
            if any(
                {
                    event.activity_task_completed_event_attributes.scheduled_event_id,
                    event.activity_task_failed_event_attributes.scheduled_event_id,
                }
                & scheduled
                for event in ends
            ):
                return
            await asyncio.sleep(0.01)


def undisturbed(steps: int) -> str:
    """The digest of scripted weights that nothing happened to."""
    weights = "base"
    for step in range(steps):
        weights = xxhash.xxh3_64(f"{weights}/{2 * step}-{2 * step + 2}/[]".encode()).hexdigest()
    return weights


@pytest.mark.parametrize(
    "fault",
    [
        ActorLost("the trainer died", role="trainer"),
        Poisoned("it died past its point of no return", role="trainer"),
        ClusterLost("the head is gone"),
    ],
    ids=lambda fault: fault.kind.value,
)
async def test_a_loss_costs_the_steps_since_the_checkpoint(
    stack: Stack, run: str, fault: RatchetError
) -> None:
    stack.script.faults[OpKind.TRAIN_STEP, 4] = [fault]
    handle = await stack.start(stack.spec(5, checkpointing=EVERY), run)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.COMPLETED, 5)
    assert result.checkpoint.version.digest == undisturbed(5)
    assert stack.trained(run) == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5)]
    assert [(row.step, row.incarnation) for row in stack.store.steps_on_path(run)] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 2),
    ]
    assert [(row.number, row.restored_step) for row in stack.store.incarnations(run)] == [(1, 0), (2, 2)]
    (incident,) = stack.store.incidents(run)
    assert incident.incarnation == 2
    assert incident.data["cause"] == fault.args[0]
    assert incident.data["seconds"] > 0
    assert "back to step 2 (1-2) as incarnation 2" in incident.data["done"]
    assert stack.cluster.closed == [session_queue(run, 1)]


async def test_before_the_first_checkpoint_the_run_starts_over(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.REFIT, 1] = [ActorLost("the trainer died", role="trainer")]
    result = await (await stack.start(stack.spec(2), run)).result()
    assert stack.trained(run) == [(1, 1), (2, 1), (2, 2)]
    assert result.checkpoint.version.digest == undisturbed(2)


async def test_a_head_that_died_with_all_actors(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 4)
    spec = stack.spec(5, checkpointing=EVERY)
    handle = await stack.start(spec, run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 4)
    rollout.set()
    await stack.cluster.lose_head(SessionRequest(run=run, session=1, spec=spec))
    result = await handle.result()
    assert result.checkpoint.version.digest == undisturbed(5)
    assert stack.trained(run)[-3:] == [(2, 3), (2, 4), (2, 5)]
    assert stack.cluster.opened == [session_queue(run, 1)] * 2


async def test_two_losses_in_a_row(stack: Stack, run: str) -> None:
    lost = ActorLost("the trainer died", role="trainer")
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [lost]
    stack.script.faults[OpKind.REFIT, 2] = []
    handle = await stack.start(stack.spec(4, checkpointing=EVERY), run)
    await stack.begun(OpKind.TRAIN_STEP, 3)
    stack.script.faults[OpKind.REFIT, 2] = [lost]  # the refit of the restored weights
    result = await handle.result()
    assert result.checkpoint.version.digest == undisturbed(4)
    assert stack.trained(run) == [(1, 1), (1, 2), (3, 3), (3, 4)]
    first, second = stack.store.incidents(run)
    assert "lost again" in first.data["done"]
    assert first.data["seconds"] is None
    assert second.data["seconds"] >= deadlines.RECOVERY_PAUSE


async def test_a_loss_that_comes_again_and_again_ends_the_run(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "RECOVERY_PAUSE", 0.01)
    stack.script.faults[OpKind.TRAIN_STEP, 1] = [ActorLost(f"loss {n}", role="trainer") for n in range(6)]
    handle = await stack.start(stack.spec(2), run)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    fault = stack.store.get_run(run).fault
    assert fault.kind is FaultKind.ACTOR_LOST
    assert "loss 5" in fault.message
    assert f"ratchet run resume {run}" in fault.message
    assert len(stack.store.incarnations(run)) == 6
    assert stack.cluster.closed == [session_queue(run, 1)]


async def test_a_step_in_between_starts_the_count_anew(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "RECOVERY_PAUSE", 0.01)
    for step in (1, 2):
        losses = [ActorLost(f"loss {n}", role="trainer") for n in range(4)]
        stack.script.faults[OpKind.TRAIN_STEP, step] = losses
    result = await (await stack.start(stack.spec(2), run)).result()
    assert result.phase is RunPhase.COMPLETED


async def test_a_damaged_checkpoint_is_left_for_the_next_older_one(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 5)
    stack.script.faults[OpKind.TRAIN_STEP, 5] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(5, checkpointing=EVERY), run)
    await stack.begun(OpKind.TRAIN_STEP, 5)
    damaged = stack.home.run_folder(run) / "checkpoints" / "1-4" / "state"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    train.set()
    result = await handle.result()
    assert result.checkpoint.version.digest == undisturbed(5)
    assert [row.restored_step for row in stack.store.incarnations(run)] == [0, None, 2]
    assert stack.trained(run)[4:] == [(3, 3), (3, 4), (3, 5)]
    lost = [incident.data["lost"] for incident in stack.store.incidents(run)]
    assert lost == ["trainer", "checkpoint"]


async def test_a_checkpoint_that_cannot_be_read_for_a_while_is_waited_for(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "STORAGE_PAUSE", 0.01)
    stack.script.faults[OpKind.TRAIN_STEP, 5] = [ActorLost("the trainer died", role="trainer")]
    away = StorageFault("cannot read /shared/1-4/state: stale file handle; check the disk")
    stack.script.faults[OpKind.RESTORE, 4] = [away] * 4
    result = await (await stack.start(stack.spec(5, checkpointing=EVERY), run)).result()
    assert result.checkpoint.version.digest == undisturbed(5)
    assert stack.trained(run)[4:] == [(2, 5)]
    waits = [incident.data for incident in stack.store.incidents(run) if incident.data["lost"] == "storage"]
    assert [wait["cause"] for wait in waits] == [str(away)] * 4


async def test_with_every_checkpoint_damaged_the_run_ends_and_says_so(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 5)
    stack.script.faults[OpKind.TRAIN_STEP, 5] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(5, checkpointing=EVERY), run)
    await stack.begun(OpKind.TRAIN_STEP, 5)
    folder = stack.home.run_folder(run) / "checkpoints"
    for name in ("1-2", "1-4"):
        (folder / name / "state").write_bytes((folder / name / "state").read_bytes()[::-1])
    train.set()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    fault = stack.store.get_run(run).fault
    assert fault.kind is FaultKind.DAMAGED
    assert "every checkpoint is unusable" in fault.message
    assert str(folder / "1-2") in fault.message
    assert str(folder / "1-4") in fault.message
    assert stack.trained(run)[-1] == (1, 4)
    assert folder.exists()


async def test_with_every_checkpoint_gone_the_run_ends_and_says_so(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 3)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(5, checkpointing=EVERY), run)
    await stack.begun(OpKind.TRAIN_STEP, 3)
    async with asyncio.timeout(30):
        while (await stack.status(run)).last_checkpoint is None:
            await asyncio.sleep(0.01)
    shutil.rmtree(stack.home.run_folder(run) / "checkpoints")
    train.set()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert "1-2 was committed and is gone" in stack.store.get_run(run).fault.message


async def test_a_half_written_checkpoint_is_passed_over_and_told_of(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 5)
    stack.script.faults[OpKind.TRAIN_STEP, 5] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(5, checkpointing=EVERY), run)
    await stack.begun(OpKind.TRAIN_STEP, 5)
    (stack.home.run_folder(run) / "checkpoints" / "1-4" / "manifest.json").unlink()
    train.set()
    await handle.result()
    assert stack.trained(run)[4:] == [(2, 3), (2, 4), (2, 5)]
    assert stack.store.incidents(run)[0].data["done"] == "passed over"


async def test_a_checkpoint_that_is_being_written_counts_if_it_gets_done(stack: Stack, run: str) -> None:
    write, train = stack.script.hold(OpKind.COMMIT_CHECKPOINT, 2), stack.script.hold(OpKind.TRAIN_STEP, 3)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(3, checkpointing=EVERY), run)
    await stack.begun(OpKind.TRAIN_STEP, 3)
    train.set()
    await stack.in_phase(run, RunPhase.RECOVERING)
    write.set()
    await handle.result()
    assert stack.trained(run) == [(1, 1), (1, 2), (2, 3)]
    assert [(row.incarnation, row.step) for row in stack.store.checkpoints(run)] == [(1, 2), (2, 3)]


@pytest.mark.parametrize("fails", [False, True], ids=["is-written-later", "fails-later"])
async def test_a_checkpoint_that_is_being_written_is_given_up_if_it_does_not(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Whichever way it ends, while the run goes on: nobody waits for it any more."""
    monkeypatch.setattr(deadlines, "SETTLE_COMMIT", 0.2)
    write, train = stack.script.hold(OpKind.COMMIT_CHECKPOINT, 2), stack.script.hold(OpKind.TRAIN_STEP, 2)
    train.set()
    if fails:
        gone = ActorLost("the snapshot is gone", role="trainer")
        stack.script.faults[OpKind.COMMIT_CHECKPOINT, 2] = [gone]
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(3, checkpointing=EVERY), run)
    async with asyncio.timeout(30):
        while (await stack.status(run)).incarnation == 1:
            await asyncio.sleep(0.01)
    train.clear()
    write.set()
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await in_history(handle, f"{run}/1/2/commit_checkpoint", FAILED if fails else COMPLETED)
    train.set()
    async with asyncio.timeout(30):
        result = await handle.result()
    assert stack.trained(run) == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    assert result.checkpoint.version.digest == undisturbed(3)


async def test_a_lost_commit_goes_back_too(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 4] = [ActorLost("the snapshot is gone", role="trainer")]
    result = await (await stack.start(stack.spec(6, checkpointing=EVERY), run)).result()
    assert result.phase is RunPhase.COMPLETED
    assert [row.restored_step for row in stack.store.incarnations(run)] == [0, 2]


async def test_a_part_that_was_replaced_below_the_run_is_an_incident_and_nothing_more(
    stack: Stack, run: str
) -> None:
    part = Recovered(role="generator", cause="actor died", detected_at=1000.5, seconds=2.5)
    stack.script.recovered[OpKind.ROLLOUT_BATCH, 2] = part
    result = await (await stack.start(stack.spec(2), run)).result()
    assert result.phase is RunPhase.COMPLETED
    (incident,) = stack.store.incidents(run)
    assert (incident.data["lost"], incident.data["detected_at"], incident.data["seconds"]) == (
        "generator",
        1000.5,
        2.5,
    )
    assert len(stack.store.incarnations(run)) == 1


async def test_continuing_as_new_in_the_middle_of_a_recovery(stack: Stack, run: str) -> None:
    spec = stack.spec(5, checkpointing=EVERY, runtime={"continue_as_new_every_steps": 2})
    stack.script.faults[OpKind.REFIT, 4] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(spec, run)
    result = await handle.result()
    assert stack.trained(run) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5)]
    assert result.checkpoint.version.digest == undisturbed(5)
    (incident,) = stack.store.incidents(run)
    assert incident.data["seconds"] > 0


async def test_an_ended_run_goes_on_from_its_newest_checkpoint(stack: Stack, run: str) -> None:
    spec = stack.spec(5, checkpointing=EVERY)
    stack.script.hold(OpKind.TRAIN_STEP, 4)
    handle = await stack.start(spec, run)
    await stack.begun(OpKind.TRAIN_STEP, 4)
    await handle.terminate("a mistake")
    stack.script.holds.clear()
    again = RunState(run=run, must_restore=True, incarnation=1, session=2)
    result = await (await stack.start(spec, run, again)).result()
    assert stack.trained(run)[3:] == [(2, 3), (2, 4), (2, 5)]
    assert result.checkpoint.version.digest == undisturbed(5)
    assert session_queue(run, 2) in stack.cluster.closed
    assert stack.store.get_run(run).phase is RunPhase.COMPLETED


async def test_a_fork_starts_from_its_parents_checkpoint(stack: Stack, run: str) -> None:
    parent = await (await stack.start(stack.spec(2), run)).result()
    origin = ForkOrigin(run=run, checkpoint=parent.checkpoint)
    fork = f"{run}-fork"
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
    handle = await stack.start(stack.spec(4), fork, RunState(run=fork, forked_from=origin))
    result = await handle.result()
    assert stack.trained(fork) == [(2, 3), (2, 4)]
    assert result.checkpoint.version.digest == undisturbed(4)
    assert [row.cursor_start for row in stack.store.steps(fork)] == [4, 6]
    assert Path(result.checkpoint.path).parts[-3] == fork


@pytest.mark.parametrize("back_to", ["first", "middle"])
async def test_a_reset_run_does_not_join_what_it_has_forgotten(stack: Stack, run: str, back_to: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 4)
    handle = await stack.start(stack.spec(5, checkpointing=EVERY), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 4)
    history = await handle.fetch_history()
    tasks = [
        event.event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    await stack.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=stack.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run, run_id=handle.first_execution_run_id),
            reason="test",
            workflow_task_finish_event_id=tasks[0] if back_to == "first" else tasks[len(tasks) // 2],
            request_id=run,
        )
    )
    rollout.set()
    result = await stack.client.get_workflow_handle(run).result()
    assert result["step"] == 5
    assert result["checkpoint"]["version"]["digest"] == undisturbed(5)
    assert stack.trained(run) == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5)]
    assert len(set(stack.script.carried_out)) == len(stack.script.carried_out)


async def test_a_full_disk_costs_a_checkpoint_and_not_the_run(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 2] = [StorageFault("no space left on device")]
    result = await (await stack.start(stack.spec(5, checkpointing=EVERY), run)).result()
    assert result.phase is RunPhase.COMPLETED
    assert [row.step for row in stack.store.checkpoints(run)] == [4, 5]
    assert len(stack.store.incarnations(run)) == 1
    (incident,) = stack.store.incidents(run)
    assert incident.data["cause"] == "no space left on device"


async def test_a_checkpoint_that_was_not_stored_is_tried_again_as_it_was_by_the_next_execution(
    stack: Stack, run: str
) -> None:
    """A stop would ask for an export as well, under an id that the conductor knows without one."""
    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 2] = [StorageFault("no space left on device")]
    evaluation = stack.script.hold(OpKind.EVALUATE, 2)
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    spec = stack.spec(
        4,
        checkpointing={"every": 2, "hf_export": "final"},
        evaluation={"num_problems": 4, "every": 2, "at_start": False},
        runtime={"continue_as_new_every_steps": 2},
    )
    handle = await stack.start(spec, run)
    await stack.on_record(lambda: stack.store.incidents(run))
    evaluation.set()
    await stack.begun(OpKind.ROLLOUT_BATCH, 3)
    await stack.update(run, names.UPDATE_STOP)
    rollout.set()
    result = await asyncio.wait_for(handle.result(), 30)
    assert (result.phase, result.checkpoint.version.step) == (RunPhase.STOPPED, 2)
    assert stack.store.get_run(run).fault is None


async def test_a_stop_during_a_step_whose_checkpoint_is_due_makes_it_the_last_one(
    stack: Stack, run: str
) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(stack.spec(4, checkpointing={"every": 2, "hf_export": "final"}), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await stack.update(run, names.UPDATE_STOP)
    train.set()
    result = await handle.result()
    assert (result.phase, result.checkpoint.version.step) == (RunPhase.STOPPED, 2)
    commits = [
        event.activity_task_scheduled_event_attributes.input.payloads[0].data
        for event in (await handle.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == "commit_checkpoint"
    ]
    assert [json.loads(commit)["hf_export"] for commit in commits] == [True]


async def test_the_last_checkpoint_is_insisted_on(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "FINAL_CHECKPOINT_PAUSE", 0.05)
    full = [StorageFault("no space left on device")] * 3
    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 1] = list(full)
    result = await (await stack.start(stack.spec(1), run)).result()
    assert result.checkpoint.version.step == 1

    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 1] = full * 2
    with pytest.raises(WorkflowFailureError):
        await (await stack.start(stack.spec(1), f"{run}-full")).result()
    assert stack.store.get_run(f"{run}-full").fault.kind is FaultKind.STORAGE


async def test_a_run_whose_rows_were_wiped_goes_on_and_is_put_on_record_again(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(stack.spec(3), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await stack.on_record(lambda: stack.store.steps(run))
    with sqlite3.connect(stack.home.root / "store.db") as store:
        store.execute("INSERT INTO forgetting VALUES (?)", [run])  # else it refuses
        tables = store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            if table not in ("alembic_version", "outbox_head"):
                store.execute(f"DELETE FROM {table}")
    store.close()
    train.set()
    result = await handle.result()
    record = stack.store.get_run(run)
    assert (result.phase, record.phase, record.step) == (RunPhase.COMPLETED, RunPhase.COMPLETED, 3)
    assert [row.step for row in stack.store.steps(run)] == [2, 3]
    assert f"ratchet rebuild store {run}" in stack.store.incidents(run)[0].message


@pytest.mark.parametrize("kind", [OpKind.ROLLOUT_BATCH, OpKind.TRAIN_STEP, OpKind.REFIT])
async def test_a_full_disk_is_waited_for(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch, kind: OpKind
) -> None:
    monkeypatch.setattr(deadlines, "STORAGE_PAUSE", 0.01)
    full = StorageFault("cannot write /data/journal: no space left on device; free space there")
    stack.script.faults[kind, 2] = [full] * 4
    result = await (await stack.start(stack.spec(2), run)).result()
    assert result.checkpoint.version.digest == undisturbed(2)
    assert stack.trained(run) == [(1, 1), (1, 2)]
    incidents = [incident.data for incident in stack.store.incidents(run)]
    assert [incident["cause"] for incident in incidents] == [str(full)] * 4
    assert all("tries again in" in incident["done"] for incident in incidents)


async def test_a_disk_that_stays_full_ends_the_run_with_the_way_out(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "STORAGE_PAUSE", 0.01)
    stack.script.faults[OpKind.ROLLOUT_BATCH, 2] = [StorageFault("no space left on device")] * 9
    with pytest.raises(WorkflowFailureError):
        await (await stack.start(stack.spec(2), run)).result()
    fault = stack.store.get_run(run).fault
    assert fault.kind is FaultKind.STORAGE
    assert f"ratchet run resume {run}" in fault.message
    assert len(stack.script.faults[OpKind.ROLLOUT_BATCH, 2]) == 9 - deadlines.MAX_STARTS


async def test_a_rollout_that_waits_for_a_full_disk_can_be_stopped(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.ROLLOUT_BATCH, 2] = [StorageFault("no space left on device")]
    handle = await stack.start(stack.spec(3), run)
    await stack.on_record(lambda: stack.store.incidents(run))
    await stack.update(run, names.UPDATE_STOP)
    result = await asyncio.wait_for(handle.result(), 20)
    assert (result.phase, result.step, result.checkpoint.version.step) == (RunPhase.STOPPED, 1, 1)


def test_the_pauses_for_a_full_disk_bridge_ten_minutes() -> None:
    pauses = [deadlines.STORAGE_PAUSE * 2**number for number in range(deadlines.MAX_STARTS - 1)]
    assert sum(pauses) == 600


async def test_recovery_with_the_workflow_cache_off(
    ratchet_temporal: WorkflowEnvironment, tmp_path: Path, run: str, spec: Callable[..., RunSpec]
) -> None:
    async with scripted_stack(ratchet_temporal.client, tmp_path, cached=0) as stack:
        stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
        handle = await stack.start(spec(3, checkpointing=EVERY), run)
        assert (await handle.result()).phase is RunPhase.COMPLETED


async def test_a_run_of_an_older_ratchet_goes_on(stack: Stack, run: str) -> None:
    first = json.loads(V1.read_text().replace('"continue-as-new"', f'"{run}"'))
    spec = RunSpec.model_validate(first["spec"])
    register = RegisterRun(run=run, spec=spec, workflow_run_id="w", incarnation=1)
    stack.store.register_run(register, at=0.0, code={})
    await stack.cluster.open_session(SessionRequest(run=run, session=1, spec=spec))
    await stack.client.start_workflow(names.RUN_WORKFLOW, first, id=run, task_queue=CONTROL_QUEUE)
    result = await stack.client.get_workflow_handle(run).result()
    assert (result["phase"], result["step"]) == ("completed", 3)


async def test_a_state_of_a_newer_ratchet_is_refused(stack: Stack, run: str) -> None:
    newer = json.loads(V1.read_text())
    newer["state"]["schema_version"] = 99
    handle = await stack.client.start_workflow(names.RUN_WORKFLOW, newer, id=run, task_queue=CONTROL_QUEUE)
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), 20)
    assert failed.value.cause.type == "SpecError"
    assert "upgrade its control workers" in failed.value.cause.message
