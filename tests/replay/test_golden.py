"""Law 14: every golden history replays, command for command, on every change."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from temporalio.workflow import NondeterminismError

import workflows.life
import workflows.recovery
from ratchet.spec import deadlines
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import EvaluateArgs
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunState
from workers.testing.replay import Golden, assert_replays
from workflows.calls import SessionCalls
from workflows.run import RunWorkflow

HISTORIES = Path(__file__).parent.parent / "histories"
PATHS = sorted(path.stem for path in HISTORIES.glob("*.json") if not path.name.endswith(".commands.json"))


def test_every_path_that_must_have_a_history_has_one() -> None:
    assert {
        "happy",
        "pause-resume",
        "stop-in-rollout",
        "stop-in-training",
        "continue-as-new",
        "continue-as-new-2",
        "retried",
        "failed",
        "trainer-lost",
        "cluster-lost",
        "damaged-checkpoint",
        "recovered-generator",
        "resumed",
        "forked",
        "reset",
        "extended",
        "hyperparameters",
        "checkpoint-now",
        "stalled",
        "stop-in-recovery",
        "disk-full",
        "queued",
        "before-admission",
    } <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
async def test_law_14_golden_history_replays(
    path: str, ratchet_golden: Callable[[str], Golden], ratchet_update_golden: bool
) -> None:
    golden = ratchet_golden(path)
    await assert_replays([RunWorkflow], golden.history, golden.commands, update=ratchet_update_golden)


@pytest.mark.parametrize("path", PATHS)
def test_arguments_and_receipts_stay_under_64_kib(path: str) -> None:
    """An oversized argument scheduled by workflow code would retry its workflow task for ever."""
    for name in (path, f"{path}.commands"):
        for payload in _leaves(json.loads((HISTORIES / f"{name}.json").read_text())):
            assert len(json.dumps(payload)) < 64 << 10


def _leaves(value: object) -> Iterator[object]:
    """Payloads in a history (base64 under `data`), and the arguments of commands."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("data", "arguments"):
                yield item
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)


async def test_a_changed_timeout_is_seen(
    ratchet_golden: Callable[[str], Golden], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "HEARTBEAT", deadlines.HEARTBEAT + 1)
    with pytest.raises(AssertionError, match="heartbeatTimeout"):
        await assert_replays([RunWorkflow], *ratchet_golden("happy"))


async def test_a_changed_deadline_of_one_operation_is_seen(
    ratchet_golden: Callable[[str], Golden], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(deadlines.OPERATION, OpKind.REFIT, 901.0)
    with pytest.raises(AssertionError, match="901s"):
        await assert_replays([RunWorkflow], *ratchet_golden("happy"))


async def test_a_changed_argument_is_seen(
    ratchet_golden: Callable[[str], Golden], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_more(**fields: object) -> EvaluateArgs:
        return EvaluateArgs.model_validate({**fields, "num_problems": 5})

    monkeypatch.setattr(workflows.life, "EvaluateArgs", one_more)
    with pytest.raises(AssertionError, match='"num_problems": 5'):
        await assert_replays([RunWorkflow], *ratchet_golden("happy"))


async def test_a_changed_order_is_seen(
    ratchet_golden: Callable[[str], Golden], monkeypatch: pytest.MonkeyPatch
) -> None:
    register = workflows.recovery.register_run

    async def session_first(spec: RunSpec, state: RunState) -> None:
        await SessionCalls(spec, state, lambda: None, lambda key, incident: None).open_session()
        await register(spec, state)

    monkeypatch.setattr(workflows.recovery, "register_run", session_first)
    with pytest.raises(NondeterminismError):
        await assert_replays([RunWorkflow], *ratchet_golden("happy"))
