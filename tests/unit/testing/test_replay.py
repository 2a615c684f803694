import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from workers.testing.replay import Golden, assert_replays, load_history, record_commands, save_history


class Work(BaseModel):
    size: int


@activity.defn
async def forge(work: Work) -> int:
    return work.size


@activity.defn
async def polish(work: Work) -> int:
    return work.size


@workflow.defn(sandboxed=False)
class Smithy:
    """A small workflow; each test changes one thing of its code."""

    steps = ("forge", "polish")
    size = 3
    timeout = timedelta(seconds=30)
    attempts = 5
    pause = timedelta(milliseconds=10)
    summary = "all of it"
    following = 1

    @workflow.run
    async def run(self, round: int) -> str:
        for name in self.steps:
            await workflow.execute_activity(
                name,
                Work(size=self.size),
                activity_id=f"{name}-{round}",
                start_to_close_timeout=self.timeout,
                retry_policy=RetryPolicy(maximum_attempts=self.attempts),
                summary=f"{name} {self.summary}",
            )
        await workflow.sleep(self.pause)
        if round == 0:
            workflow.continue_as_new(self.following)
        return "done"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def recorded(
    ratchet_temporal: WorkflowEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Path]:
    """A folder with the histories of the workflow's two executions and their snapshots."""
    client, queue, folder = ratchet_temporal.client, str(uuid4()), tmp_path_factory.mktemp("histories")
    async with Worker(client, task_queue=queue, workflows=[Smithy], activities=[forge, polish]):
        first = await client.start_workflow(Smithy.run, 0, id=queue, task_queue=queue)
        assert await first.result() == "done"
    for name, run_id in (("first", first.result_run_id), ("last", None)):
        golden = Golden.named(folder, name)
        await save_history(client.get_workflow_handle(queue, run_id=run_id), golden.history)
        await assert_replays([Smithy], *golden, update=True)
    yield folder


@pytest.mark.parametrize("name", ["first", "last"])
async def test_the_same_code_passes(recorded: Path, name: str):
    await assert_replays([Smithy], *Golden.named(recorded, name))


async def test_commands_are_readable(recorded: Path):
    golden = Golden.named(recorded, "first")
    commands = await record_commands([Smithy], load_history(golden.history))
    assert [next(key for key in command if key != "userMetadata") for command in commands] == [
        "scheduleActivity",
        "scheduleActivity",
        "startTimer",
        "continueAsNewWorkflowExecution",
    ]
    scheduled = commands[0]["scheduleActivity"]
    assert scheduled["activityId"] == "forge-0"
    assert scheduled["activityType"] == "forge"
    assert scheduled["arguments"] == [{"size": 3}]
    assert scheduled["startToCloseTimeout"] == "30s"
    assert scheduled["retryPolicy"]["maximumAttempts"] == 5
    assert commands[0]["userMetadata"] == {"summary": "forge all of it"}
    assert commands[3]["continueAsNewWorkflowExecution"]["arguments"] == [1]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("timeout", timedelta(seconds=31), '+   "startToCloseTimeout": "31s"'),
        ("size", 4, '+     "size": 4'),
        ("attempts", 6, '+    "maximumAttempts": 6'),
        ("summary", "some of it", '+   "summary": "forge some of it"'),
        ("pause", timedelta(seconds=2), '+   "startToFireTimeout": "2s"'),
        ("following", 2, "+    2"),
    ],
)
async def test_a_change_that_replay_does_not_see_turns_it_red(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, shown: str
):
    monkeypatch.setattr(Smithy, name, value)
    with pytest.raises(AssertionError) as error:
        await assert_replays([Smithy], *Golden.named(recorded, "first"))
    assert shown in [line.rstrip(",") for line in str(error.value).splitlines()]


async def test_another_order_turns_it_red(recorded: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Smithy, "steps", ("polish", "forge"))
    with pytest.raises(workflow.NondeterminismError):
        await assert_replays([Smithy], *Golden.named(recorded, "first"))


async def test_update_rewrites_the_snapshot_and_only_that(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(recorded, tmp_path / "copy")
    golden = Golden.named(tmp_path / "copy", "first")
    history = golden.history.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(Smithy, "size", 4)
        await assert_replays([Smithy], *golden, update=True)
        await assert_replays([Smithy], *golden)
    assert golden.history.read_text() == history
    with pytest.raises(AssertionError, match="commands changed"):
        await assert_replays([Smithy], *golden)


async def test_a_missing_snapshot_is_no_pass(recorded: Path, tmp_path: Path):
    with pytest.raises(AssertionError, match="--update-golden"):
        await assert_replays([Smithy], Golden.named(recorded, "first").history, tmp_path / "absent.json")


def test_histories_name_no_machine(recorded: Path):
    text = Golden.named(recorded, "first").history.read_text()
    identities = [line.split(": ")[1] for line in text.splitlines() if '"identity"' in line]
    assert identities
    assert set(identities) <= {'"worker"', '"worker",'}
