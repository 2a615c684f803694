"""Control activities as a worker runs them: what they write, and how they fail."""

import asyncio
import dataclasses
import math
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.control import ControlActivities
from ratchet.artifacts.manifest import Manifest, commit_manifest
from ratchet.spec import names
from ratchet.spec.control import (
    ChooseCheckpoint,
    EvaluationEntry,
    EventEntry,
    RecordRequest,
    RegisterRun,
    RetainRequest,
    StateEntry,
)
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.receipts import EvaluateReceipt
from ratchet.spec.run_spec import (
    CheckpointSpec,
    EnvironmentSpec,
    GenerationSpec,
    GrpoSpec,
    PolicySpec,
    RunSpec,
)
from ratchet.spec.state import RunPhase
from ratchet.store import Store

REGISTER = RegisterRun(
    run="r",
    spec=RunSpec(
        name="tiny-addition",
        policy=PolicySpec(model="tiny"),
        generation=GenerationSpec(max_new_tokens=5),
        grpo=GrpoSpec(num_prompts_per_step=4, num_generations_per_prompt=8, max_num_steps=40),
        environment=EnvironmentSpec(name="arithmetic"),
    ),
    workflow_run_id="wf-1",
    incarnation=1,
)


def paused(key: str = "pause-1", message: str = "paused", run: str = "r") -> RecordRequest:
    return RecordRequest(
        run=run,
        incarnation=1,
        at=20.0,
        entries=(
            StateEntry(phase=RunPhase.PAUSED, step=3),
            EventEntry(key=key, topic="update", message=message),
        ),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{file}", busy_s=0.1)
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def control(store: Store, tmp_path: Path) -> ControlActivities:
    return ControlActivities(store, Home(tmp_path))


@pytest.fixture
def env() -> ActivityEnvironment:
    return ActivityEnvironment()


def test_a_worker_finds_them_by_name(control):
    found = {activity._Definition.must_from_callable(run).name for run in control.all()}
    assert found == {
        names.REGISTER_RUN,
        names.RECORD,
        names.CHOOSE_CHECKPOINT,
        names.RETAIN,
        names.DIAGNOSE,
    }


async def test_register_and_record_write_once_however_often_they_are_tried(control, store, env):
    scheduled = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
    env.info = dataclasses.replace(env.info, scheduled_time=scheduled)
    for _ in range(2):
        await env.run(control.register_run, REGISTER)
        await env.run(control.record, paused())
    run = store.get_run("r")
    assert (run.phase, run.step, run.created_at) == (RunPhase.PAUSED, 3, scheduled.timestamp())
    assert {"ratchet", "python", "temporalio"} <= set(run.code)
    assert len(store.events("r")) == 1


@pytest.mark.parametrize(
    ("request_", "kind"),
    [(paused(message="something else"), "Conflict"), (paused(run="nobody"), "NotOnRecord")],
)
async def test_a_conflict_is_final(control, env, request_, kind):
    await env.run(control.register_run, REGISTER)
    await env.run(control.record, paused())
    with pytest.raises(ApplicationError) as caught:
        await env.run(control.record, request_)
    assert (caught.value.type, caught.value.non_retryable) == (kind, True)
    assert "\n" not in caught.value.message


async def test_a_store_that_is_locked_is_to_be_tried_again(control, store, env, file):
    await env.run(control.register_run, REGISTER)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ApplicationError) as caught:
        await env.run(control.record, paused())
    assert (caught.value.type, caught.value.non_retryable) == ("Unavailable", False)
    assert "locked" in caught.value.message
    assert "\n" not in caught.value.message
    holder.execute("ROLLBACK")
    holder.close()
    await env.run(control.record, paused())
    assert store.get_run("r").phase is RunPhase.PAUSED


async def test_a_locked_store_does_not_hold_up_the_loop(control, env, file):
    await env.run(control.register_run, REGISTER)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(env.run(control.record, paused()))
    turns = 0
    while not waiting.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert isinstance(waiting.exception(), ApplicationError)
    assert turns > 10
    holder.close()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Three committed checkpoints of run r: 1-1, 1-2, 1-3."""
    folder = Home(tmp_path).run_folder("r") / "checkpoints"
    for step in (1, 2, 3):
        (folder / f"1-{step}").mkdir(parents=True)
        version = WeightVersion(incarnation=1, step=step, digest=f"d{step}")
        manifest = Manifest(
            run="r",
            incarnation=1,
            step=step,
            cursor=4 * step,
            version=version,
            state_digest="s",
            base_model="m",
            spec_digest="s",
            created_at=0.0,
            files=(),
        )
        commit_manifest(folder / f"1-{step}", manifest)
    return folder


async def test_the_newest_checkpoint_that_is_not_to_be_avoided_is_chosen(control, env, checkpoints):
    point = await env.run(control.choose_checkpoint, ChooseCheckpoint(run="r"))
    assert (point.step, point.checkpoint.cursor, point.highest_incarnation) == (3, 12, 1)
    avoid = (str(checkpoints / "1-3"),)
    point = await env.run(control.choose_checkpoint, ChooseCheckpoint(run="r", avoid=avoid))
    assert point.step == 2
    assert len(point.passed_over) == 1


async def test_a_run_without_checkpoints_starts_over(control, env):
    point = await env.run(control.choose_checkpoint, ChooseCheckpoint(run="r"))
    assert (point.checkpoint, point.step, point.highest_incarnation) == (None, 0, 0)


async def test_artifacts_that_cannot_be_read_are_to_be_tried_again(control, env, tmp_path):
    place = Home(tmp_path).run_folder("r") / "checkpoints"
    place.parent.mkdir(parents=True)
    place.write_text("a file in the way")
    with pytest.raises(ApplicationError) as caught:
        await env.run(control.choose_checkpoint, ChooseCheckpoint(run="r"))
    assert (caught.value.type, caught.value.non_retryable) == ("StorageFault", False)


async def test_retention_keeps_the_best_of_what_the_store_knows(control, env, checkpoints):
    await env.run(control.register_run, REGISTER)
    entries = tuple(
        EvaluationEntry(
            step=step,
            receipt=EvaluateReceipt(
                op="e",
                version=WeightVersion(incarnation=1, step=step, digest="d"),
                num_problems=4,
                accuracy=accuracy,
                reward_mean=0.0,
                length_mean=1.0,
            ),
        )
        for step, accuracy in ((1, 0.9), (2, math.nan), (3, 0.1))
    )
    await env.run(control.record, RecordRequest(run="r", incarnation=1, at=1.0, entries=entries))
    policy = CheckpointSpec(keep_last=1, keep_best="accuracy")
    spec = REGISTER.spec.model_copy(update={"checkpointing": policy})
    answer = await env.run(control.retain, RetainRequest(run="r", spec=spec, in_use=()))
    assert answer.deleted == (str(checkpoints / "1-2"),)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["1-1", "1-3"]
