"""What a run is said to do: words of the workflow, heartbeats and failures from Temporal."""

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowFailureError

from api.doing import OpenActivity, in_words
from ratchet.spec import deadlines, names
from ratchet.spec.control import SessionRequest
from ratchet.spec.faults import DataFault, Unavailable
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind, WeightVersion, session_queue
from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    SnapshotArgs,
    TrainArgs,
)
from ratchet.spec.state import RunPhase, RunStatus
from ratchet.spec.views import Problem, RunView
from workers.testing.scripted import ScriptedStack
from workflows.summaries import summary

VERSION = WeightVersion(incarnation=1, step=2, digest="ab12cd34ef")
ARGS: dict[OpKind, Callable[[OpId], AnyArgs]] = {
    OpKind.RESTORE: lambda op: RestoreArgs(op=op),
    OpKind.ROLLOUT_BATCH: lambda op: RolloutArgs(op=op, cursor_start=32, cursor_end=48, version=VERSION),
    OpKind.TRAIN_STEP: lambda op: TrainArgs(op=op, cursor_start=32, cursor_end=48, version=VERSION),
    OpKind.REFIT: lambda op: RefitArgs(op=op, version=VERSION),
    OpKind.SNAPSHOT: lambda op: SnapshotArgs(op=op, version=VERSION, cursor=48),
    OpKind.COMMIT_CHECKPOINT: lambda op: CommitArgs(op=op, version=VERSION, cursor=48, hf_export=True),
    OpKind.EVALUATE: lambda op: EvaluateArgs(op=op, version=VERSION, num_problems=8),
}


def op(kind: OpKind, step: int = 3) -> OpId:
    return OpId(run="r", incarnation=1, step=step, kind=kind)


def open_activity(kind: OpKind, step: int = 3, **known: Any) -> OpenActivity:
    return OpenActivity(id=str(op(kind, step)), kind=kind.value, **known)


# --- words


@pytest.mark.parametrize("kind", OpKind)
def test_what_is_known_of_an_operation_stands_behind_the_workflows_words_for_it(kind: OpKind) -> None:
    text = summary(ARGS[kind](op(kind)))
    others = [open_activity(other, progress="wrong") for other in OpKind if other is not kind]
    others.append(open_activity(kind, step=4, progress="wrong"))
    mine = open_activity(kind, progress="7 of 16 groups", attempt=3, failure="session worker ab12 is gone")
    assert in_words([text], [*others, mine]) == [
        f"{text} (7 of 16 groups) (attempt 3: session worker ab12 is gone)"
    ]


def test_a_restore_from_a_checkpoint_is_recognised_too() -> None:
    text = summary(RestoreArgs(op=op(OpKind.RESTORE), checkpoint="runs/r/checkpoints/1-3"))
    assert in_words([text], [open_activity(OpKind.RESTORE, progress="loading")]) == [f"{text} (loading)"]


def test_a_workflow_that_does_not_answer_still_has_its_operations_named() -> None:
    assert in_words(None, [open_activity(OpKind.TRAIN_STEP, waiting=True)]) == [
        "step 3: train step (waiting for a worker)"
    ]


def test_records_are_told_only_when_they_do_not_go_well() -> None:
    record = OpenActivity(id="17", kind=names.RECORD)
    assert in_words([], [record]) == []
    late = OpenActivity(id="17", kind=names.RECORD, attempt=4, failure="the store is locked")
    assert in_words([], [late]) == ["write down what happened (attempt 4: the store is locked)"]


# --- from Temporal


async def test_a_session_worker_that_is_lost_in_the_middle_of_an_operation_shows(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, scripted_spec: Any
) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    assert (await launch(run, scripted_spec())).status_code == 201
    await stack.script.began[OpKind.ROLLOUT_BATCH, 1].wait()

    async def doing() -> str:
        (line,) = (await api.get(f"/v1/runs/{run}")).json()["doing"]
        return line

    healthy = await doing()
    assert healthy.startswith("step 1: roll out prompts 0 to 1 with weights 1.0.")
    assert "(" not in healthy

    await stack.cluster.stop_worker(session_queue(run, 1))
    while "waiting for a worker" not in (lost := await doing()):
        pass
    assert lost.startswith(f"{healthy} (attempt 2: ")

    rollout.set()
    await stack.cluster.restart_worker(SessionRequest(run=run, session=1, spec=scripted_spec()))
    await stack.client.get_workflow_handle(run).result()
    assert (await api.get(f"/v1/runs/{run}")).json()["doing"] == []


async def test_a_run_has_failed_once_the_reason_is_on_record(
    api: httpx.AsyncClient, stack: ScriptedStack, home: Home, run: str, launch: Any, scripted_spec: Any
) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    stack.script.faults[OpKind.ROLLOUT_BATCH, 1] = [DataFault("prompt 3 cannot be scored")]
    await launch(run, scripted_spec())
    await stack.script.began[OpKind.ROLLOUT_BATCH, 1].wait()
    workflow = stack.client.get_workflow_handle(run)

    async def shown() -> RunView:
        return RunView.model_validate_json((await api.get(f"/v1/runs/{run}")).content)

    with contextlib.closing(sqlite3.connect(home.root / "store.db")) as somebody:
        somebody.execute("begin immediate")
        rollout.set()
        while (await workflow.query(names.QUERY_STATUS, result_type=RunStatus)).phase is not RunPhase.FAILED:
            pass
        assert not (await shown()).phase.final
    while not (view := await shown()).phase.final:
        pass
    assert view.fault is not None
    assert view.fault.message.startswith("prompt 3 cannot be scored")
    with pytest.raises(WorkflowFailureError):
        await workflow.result()


async def test_a_launch_that_cannot_be_put_on_record_says_why(
    stack: ScriptedStack,
    run: str,
    launch: Any,
    scripted_spec: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def locked(*_: object, **__: object) -> None:
        raise Unavailable("store: database is locked")

    monkeypatch.setattr(deadlines, "LAUNCH", 2.0)
    monkeypatch.setattr(stack.store, "register_run", locked)  # the control worker's, not the API's
    response = await launch(run, scripted_spec())
    problem = Problem.model_validate_json(response.content)
    assert problem.status == 503
    assert "database is locked" in problem.detail
    assert "ratchet logs control-worker" in problem.detail
    assert "\n" not in problem.detail


async def test_what_cannot_be_audited_is_not_done(
    api: httpx.AsyncClient, stack: ScriptedStack, home: Home, run: str, launch: Any, scripted_spec: Any
) -> None:
    with contextlib.closing(sqlite3.connect(home.root / "store.db")) as somebody:
        somebody.execute("begin immediate")
        response = await launch(run, scripted_spec())
    assert response.status_code == 503
    assert "database is locked" in Problem.model_validate_json(response.content).detail
    assert (await api.get(f"/v1/runs/{run}")).status_code == 404
    assert [one async for one in stack.client.list_workflows(f'WorkflowId = "{run}"')] == []
