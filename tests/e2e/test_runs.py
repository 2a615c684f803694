"""What a run promises when nobody kills anything: it learns, it repeats, it stops and continues cleanly."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.checkpoints.loader import load_checkpoint
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.spec.loading import load_spec
from tests.e2e.conftest import QUICK, ROOT, Stack, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECIPE = ROOT / "recipes" / "tiny-addition.yaml"


@pytest.fixture(scope="module")
def twice(stack: Stack) -> tuple[str, str]:
    """The whole recipe, twice."""
    for run in ("whole-1", "whole-2"):
        stack.launch(run)
        assert stack.ended(run)["phase"] == "completed"
    return "whole-1", "whole-2"


def test_tiny_addition_run_twice_ends_in_the_same_bits(stack: Stack, twice: tuple[str, str]) -> None:
    first, second = (stack.show(run) for run in twice)
    assert first["last_checkpoint"]["digest"] == second["last_checkpoint"]["digest"]
    versions = [[row.version_digest for row in stack.store.steps(run)] for run in twice]
    assert len(versions[0]) == 40
    assert versions[0] == versions[1]


def test_tiny_addition_learns(stack: Stack, twice: tuple[str, str]) -> None:
    before, after = stack.json("run", "show", twice[0])["evaluations"]
    assert (before["step"], after["step"], after["num_problems"]) == (0, 40, 256)
    assert after["accuracy"] >= before["accuracy"] + 0.10


def test_the_export_gives_the_trainers_logits(stack: Stack, twice: tuple[str, str]) -> None:
    checkpoint = Path(stack.json("run", "show", twice[0])["last_checkpoint"]["path"])
    exported = AutoModelForCausalLM.from_pretrained(checkpoint / "hf")
    prompt = AutoTokenizer.from_pretrained(checkpoint / "hf")("27+15=", return_tensors="pt")

    trainer = TorchTrainer(load_spec(RECIPE))
    trainer.open(next(path for path in stack.home.models.iterdir() if path.is_dir()))
    trainer.load_state(load_checkpoint(checkpoint, trainer.state_template()))
    with torch.no_grad():
        assert torch.equal(exported(**prompt).logits, trainer._loaded.model(**prompt).logits)


def test_continuing_as_new_every_2_steps_joins_a_slow_checkpoint_and_delays_nothing(stack: Stack) -> None:
    six_steps = (*QUICK, "grpo.max_num_steps=6")
    stack.launch("straight", *six_steps)
    stack.failpoints.arm("commit_checkpoint.begin", "1 sleep 10")
    stack.launch("cut", *six_steps, "checkpointing.every=2", "runtime.continue_as_new_every_steps=2")
    cut, straight = stack.ended("cut"), stack.ended("straight")

    assert stack.failpoints.was_hit("commit_checkpoint.begin")
    assert cut["last_checkpoint"]["digest"] == straight["last_checkpoint"]["digest"]
    slowed = stack.store.checkpoints("cut")[0]
    assert (slowed.step, slowed.starts) == (2, 1)
    assert slowed.submits >= 2
    assert slowed.write_s < 10  # the ten seconds are the failpoint's, around the write
    # Step 3 ran while the checkpoint of step 2 was held. (Step 4 is followed by a snapshot, which waits for
    # the previous write by design.)
    steps = stack.store.steps("cut")
    assert steps[3].finished_at - steps[1].finished_at < 8


def test_stop_in_the_middle_of_a_step_ends_with_a_checkpoint(stack: Stack) -> None:
    stack.failpoints.arm("rollout_batch.group", "6 hold")
    stack.launch("stopped", *QUICK, "grpo.max_num_steps=50")
    stack.failpoints.wait_hit("rollout_batch.group")
    stack.ratchet("run", "stop", "stopped")
    stack.failpoints.release("rollout_batch.group")
    shown = stack.ended("stopped")
    assert (shown["phase"], shown["step"], shown["last_checkpoint"]["step"]) == ("stopped", 1, 1)
    assert (Path(shown["last_checkpoint"]["path"]) / "manifest.json").exists()


def test_pause_holds_a_run_at_a_boundary_until_it_is_resumed(stack: Stack) -> None:
    stack.failpoints.arm("train_step.leased", "1 hold")
    stack.launch("paused", *QUICK)
    stack.failpoints.wait_hit("train_step.leased")
    stack.ratchet("run", "pause", "paused")
    stack.failpoints.release("train_step.leased")
    until("the pause", lambda: stack.phase("paused") == "paused")
    assert stack.show("paused")["step"] == 1
    stack.ratchet("run", "resume", "paused")
    assert stack.ended("paused")["phase"] == "completed"
    assert stack.segments() == []  # an ended run gives back what its trainer had staged
