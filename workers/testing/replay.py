"""Golden histories: replay one, and compare every command that today's code schedules with a snapshot.

Replay alone sees that commands come in another order or under another name. It does not see changed
arguments, timeouts, retry policies, timer durations or results: those are what the snapshot is for.
"""

import base64
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from google.protobuf.json_format import MessageToDict
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import (
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

Command = dict[str, Any]

# Where a history was recorded is nobody's business, and would differ at every recording.
_PRIVATE = {"identity": "worker", "lastWorkerIdentity": "worker", "stackTrace": ""}


class Golden(NamedTuple):
    """Files of one golden history."""

    history: Path
    commands: Path

    @classmethod
    def named(cls, folder: Path, name: str) -> Self:
        return cls(folder / f"{name}.json", folder / f"{name}.commands.json")


async def save_history(source: WorkflowHandle[Any, Any] | WorkflowHistory, path: Path) -> None:
    """Write a history as JSON, without the names of the machines it was recorded on."""
    history = source if isinstance(source, WorkflowHistory) else await source.fetch_history()
    _write(path, _as_json(_scrub(history.to_json_dict())))


def load_history(path: Path) -> WorkflowHistory:
    """Read what `save_history` wrote, or `temporal workflow show --output json`."""
    document = json.loads(path.read_text())
    started = document["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], document)


async def record_commands(workflows: Sequence[type], history: WorkflowHistory) -> list[Command]:
    """Replay a history and return every command the workflow code gave, in order, with payloads decoded:
    activities (type, queue, arguments, timeouts, retry policy, summary), timers, continue-as-new, search
    attributes, update answers, the result.

    Raises temporalio.workflow.NondeterminismError if the code no longer fits the history.
    """
    runner = _RecordingRunner()
    replayer = Replayer(
        workflows=workflows,
        workflow_runner=runner,
        unsandboxed_workflow_runner=runner,
        data_converter=pydantic_data_converter,
    )
    await replayer.replay_workflow(history)
    return runner.commands


async def assert_replays(
    workflows: Sequence[type], history_path: Path, snapshot_path: Path, *, update: bool = False
) -> None:
    """Replay a golden history and compare its commands with the snapshot; `update` rewrites the snapshot.

    Raises NondeterminismError if it does not replay, AssertionError with a diff if a command changed.
    """
    _compare(
        await record_commands(workflows, load_history(history_path)), history_path, snapshot_path, update
    )


def write_snapshot(path: Path, commands: list[Command]) -> None:
    """Make `commands` what a golden history is compared with."""
    _write(path, _as_json(commands))


def _compare(commands: list[Command], history_path: Path, snapshot_path: Path, update: bool) -> None:
    if update:
        write_snapshot(snapshot_path, commands)
        return
    actual = _as_json(commands)
    assert snapshot_path.exists(), f"{snapshot_path} does not exist: pytest --update-golden writes it"
    expected = snapshot_path.read_text()
    if actual != expected:
        before, after = expected.splitlines(), actual.splitlines()
        diff = difflib.unified_diff(before, after, str(snapshot_path), "today's code", lineterm="")
        raise AssertionError(
            f"{history_path.name} replays, but its commands changed. If that is meant and safe for runs in "
            "flight, rewrite the snapshot with pytest --update-golden.\n" + "\n".join(diff)
        )


class _RecordingRunner(WorkflowRunner):
    """Runs workflows unsandboxed and keeps what each activation answers."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self._inner = UnsandboxedWorkflowRunner()

    def prepare_workflow(self, defn: Any) -> None:
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = self._inner.create_instance(det)
        activate = instance.activate

        def recording(act: WorkflowActivation) -> WorkflowActivationCompletion:
            completion = activate(act)
            # Copied now: the worker encodes payloads in place afterwards.
            commands = completion.successful.commands
            self.commands += [_decode(_scrub(MessageToDict(command))) for command in commands]
            return completion

        instance.activate = recording
        return instance


def _decode(value: Any) -> Any:
    """Protobuf's JSON with each payload replaced by the value it holds."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    encoding = base64.b64decode(value.get("metadata", {}).get("encoding", "")).decode()
    if not encoding:
        return {key: _decode(item) for key, item in value.items()}
    if encoding == "binary/null":
        return None
    if encoding.startswith("json/"):
        return json.loads(base64.b64decode(value["data"]))
    return value


def _scrub(value: Any) -> Any:
    if isinstance(value, list):
        return [_scrub(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
        value = {**value, "name": "sticky"}
    return {key: _PRIVATE[key] if key in _PRIVATE else _scrub(item) for key, item in value.items()}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
