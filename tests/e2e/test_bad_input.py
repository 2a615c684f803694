"""Bad input, through the real command: one clear line with the fix, an exit code, nothing half-started."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.models.prepare import prepare_model
from ratchet.spec.stack import StackState
from tests.e2e.conftest import QUICK, Stack, until
from workers.temporal import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECIPE = "recipes/tiny-addition.yaml"
BAD_INPUT = 2
RUN_FAILED = 1


def launch(stack: Stack, *settings: str, run: str, expect: int) -> subprocess.CompletedProcess[str]:
    sets = [word for setting in settings for word in ("--set", setting)]
    return stack.ratchet("run", "launch", RECIPE, "--id", run, "--wait", *sets, expect=expect)


def assert_never_started(stack: Stack, run: str) -> None:
    """Neither a row, nor a workflow, a folder or a process."""

    async def workflows() -> list[str]:
        state = StackState.load(stack.home)
        client = await connect(state.temporal_address, namespace=state.namespace)
        return [execution.id async for execution in client.list_workflows(f"WorkflowId = '{run}'")]

    assert stack.store.get_run(run) is None
    assert asyncio.run(workflows()) == []
    assert_nothing_runs(stack, run)
    assert not stack.home.run_folder(run).exists()


def assert_nothing_runs(stack: Stack, run: str) -> None:
    """No session of the run is left: neither its worker and host, nor its scratch folder."""
    assert not stack.home.session_folder(run, 1).exists()
    assert [words for words in stack.processes() if f"--run {run} " in words] == []


def assert_failed(stack: Stack, run: str, waited: subprocess.CompletedProcess[str], *said: str) -> None:
    """`launch --wait` and `run show` give the reason in one line, and its session is gone."""
    shown = stack.ratchet("run", "show", run)
    for output in (waited.stdout, shown.stdout):
        (reason,) = [line for line in output.splitlines() if line.startswith(("reason ", "now "))]
        for words in said:
            assert words in reason
        assert "Traceback" not in output
    assert stack.phase(run) == "failed"
    until("the end of its session", lambda: not stack.home.session_folder(run, 1).exists())
    assert_nothing_runs(stack, run)


# --- refused at launch


@pytest.mark.parametrize(
    ("settings", "key", "fix"),
    [
        (("grpo.max_num_stepz=3",), "grpo.max_num_stepz", "did you mean grpo.max_num_steps?"),
        (("trainer.lr=1e-5",), "trainer", "policy, generation"),
        (("grpo.num_prompts_per_step=-4",), "grpo.num_prompts_per_step: -4", "an integer > 0"),
        (
            ("policy.train_global_batch_size=96",),
            "policy.train_global_batch_size: 96",
            "16 x 8 = 128 (set it to 128, or leave it out)",
        ),
        (
            ("policy.model=/usr",),
            "policy.model: /usr has no config.json",
            "a folder in the Hugging Face layout",
        ),
        (("policy.model=./no-such-model",), "policy.model: there is no folder", "Hugging Face name"),
        (("environment.name=arithmetik",), "environment.name", "did you mean arithmetic?"),
        (("generation.backend=hff",), "generation.backend", "did you mean hf?"),
        (("policy.backend=tensorflow",), "policy.backend", "torch, module:Class"),
        (("environment.name=reasoning-gym:gcdd",), "environment.name", "did you mean gcd"),
        (("environment.name=my.envs:Chess",), "environment.name", "PYTHONPATH"),
        (("environment.options.shotz=1",), "environment.options.shotz", "did you mean shots?"),
        (("environment.options.shots=-1",), "environment.options.shots: -1", "greater than or equal to 0"),
    ],
    ids=lambda value: value[0].split("=")[0] if isinstance(value, tuple) else "",
)
def test_a_wrong_spec_is_refused_with_the_key_and_the_fix(
    stack: Stack, settings: tuple[str, ...], key: str, fix: str
) -> None:
    refused = launch(stack, *settings, run="refused", expect=BAD_INPUT)
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {key}")
    assert fix in line
    assert refused.stdout == ""
    assert_never_started(stack, "refused")


def test_every_mistake_has_a_line(stack: Stack) -> None:
    refused = launch(
        stack, "policy.model=tinny", "environment.name=arithmetik", run="refused", expect=BAD_INPUT
    )
    model, environment = refused.stderr.splitlines()
    assert "did you mean tiny?" in model
    assert "did you mean arithmetic?" in environment
    assert_never_started(stack, "refused")


def test_a_run_id_that_cannot_be_one(stack: Stack) -> None:
    refused = launch(stack, run="No Good", expect=BAD_INPUT)
    (line,) = refused.stderr.splitlines()
    assert line.startswith('error: run_id: "No Good"')
    assert "lower-case letters, digits and dashes" in line


# --- what shows only once the run is under way


@pytest.fixture
def model(stack: Stack, tmp_path: Path) -> Path:
    """A model folder of somebody's own."""
    folder = tmp_path / "model"
    shutil.copytree(prepare_model("tiny", stack.home), folder)
    return folder


def test_a_model_folder_that_vanishes_between_launch_and_load(stack: Stack, model: Path) -> None:
    stack.launch("vanished", f"policy.model={model}")
    shutil.rmtree(model)
    watched = stack.ratchet("run", "watch", "vanished", expect=RUN_FAILED)
    assert_failed(stack, "vanished", watched, "SpecError", f"policy.model: there is no folder {model}")


def test_a_model_folder_whose_weights_are_damaged(stack: Stack, model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: 1 << 12])
    waited = launch(stack, f"policy.model={model}", run="damaged", expect=RUN_FAILED)
    assert_failed(stack, "damaged", waited, "SpecError", f"policy.model: {model}", "give a folder that")


# --- a full disk


@pytest.fixture
def small_disk(stack: Stack) -> Iterator[Callable[[], Path]]:
    """Puts a disk of one megabyte where the run `full` is to keep its checkpoints."""
    folder = stack.home.run_folder("full") / "checkpoints"
    mount = shutil.which("mount")
    if not mount or os.geteuid() != 0:
        pytest.skip("a disk that fills up takes a tmpfs of its own, which only root may mount")

    def put() -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if not _succeeds(mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder):
            pytest.skip("this machine lets nobody mount a tmpfs")
        return folder

    yield put
    _succeeds("umount", "--lazy", folder)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(stack: Stack, small_disk: Callable[[], Path]) -> None:
    stack.failpoints.arm("train_step.leased", "1 hold")
    stack.failpoints.arm(
        "rollout_batch.group", "5 hold"
    )  # in step 2, while the checkpoint of step 1 is written
    stack.launch("full", *QUICK, "checkpointing.every=1")
    stack.failpoints.wait_hit("train_step.leased")
    folder = small_disk()
    stack.failpoints.release("train_step.leased")

    def told() -> dict[str, Any] | None:
        return next(iter(stack.show("full")["incidents"]), None)

    incident = until("word of the full disk", told)
    assert "no space left" in incident["cause"]
    assert "free space there" in incident["cause"]
    assert list(folder.iterdir()) == [], "nothing half-written stays"

    assert _succeeds("mount", "-o", "remount,size=200m", folder)
    stack.failpoints.release("rollout_batch.group")
    shown = stack.ended("full")
    assert shown["phase"] == "completed"
    assert [row.step for row in stack.store.steps("full")] == [1, 2, 3]
    assert [row.step for row in stack.store.checkpoints("full")][-1] == 3


def _succeeds(*words: str | Path) -> bool:
    return subprocess.run(words, capture_output=True, timeout=20, check=False).returncode == 0
