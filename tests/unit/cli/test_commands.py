"""What scripts see of `ratchet run`: exit codes, stdout, and one line per problem on stderr."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.home import Home
from ratchet.spec.state import RunPhase

Ratchet = Callable[..., Result]

RECIPE = str(Path(__file__).parents[3] / "recipes" / "tiny-addition.yaml")


@pytest.fixture
def runs(on_record: Any, api_server: Any) -> Any:
    """A completed, a failed and a running run."""
    fault = Fault(kind=FaultKind.STORAGE, message="the disk is full: free some space")
    on_record.run("done", RunPhase.COMPLETED, steps=4, began=1000.0)
    on_record.run("broken", RunPhase.FAILED, steps=2, fault=fault, began=2000.0)
    on_record.run("going", RunPhase.RUNNING, steps=2, began=3000.0)
    return on_record


def test_watch_ends_with_before_and_after_and_where_the_result_is(ratchet: Ratchet, runs: Any) -> None:
    result = ratchet("run", "watch", "done")
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert [line.split("  ")[0] for line in lines[:-5]] == [
        "held-out accuracy 0.400 at step 0 (256 problems)",
        "step 1/4",
        "step 2/4",
        "step 3/4",
        "step 4/4",
        "held-out accuracy 0.750 at step 4 (256 problems)",
        "checkpoint of step 4: /artifacts/runs/done/checkpoints/1-4",
    ]
    assert lines[-5:] == [
        "done  completed after 4 of 4 steps, 9.0 s",
        "held-out accuracy  0.400 → 0.750  +0.350  (steps 0 and 4, 256 problems)",
        "mean reward        0.550 (first 2 steps) → 0.750 (last 2 steps)",
        "checkpoint         step 4  7.3 MB  /artifacts/runs/done/checkpoints/1-4",
        "temporal           http://127.0.0.1:8233/namespaces/ratchet/workflows/done",
    ]
    assert "next: ratchet run show done" in result.stderr


def test_watching_a_failed_run_fails_and_says_why(ratchet: Ratchet, runs: Any) -> None:
    result = ratchet("run", "watch", "broken")
    assert result.exit_code == 1
    assert "StorageFault: the disk is full: free some space" in result.stdout


def test_watch_as_json_is_a_line_per_step_and_the_run(ratchet: Ratchet, runs: Any) -> None:
    result = ratchet("run", "watch", "done", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["step"] for line in lines[:-1]] == [1, 2, 3, 4]
    assert lines[-1]["phase"] == "completed"
    assert result.stderr == ""


def test_show_and_ls(ratchet: Ratchet, runs: Any) -> None:
    shown = ratchet("run", "show", "going")
    assert shown.exit_code == 0
    assert "going  running" in shown.stdout
    assert "2/4" in shown.stdout
    assert json.loads(ratchet("run", "show", "going", "--json").stdout)["step"] == 2

    listed = ratchet("run", "ls")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["run", "going", "broken", "done"]
    assert "the disk is full" in listed.stdout
    filtered = json.loads(ratchet("run", "ls", "--phase", "failed", "--json").stdout)
    assert [run["id"] for run in filtered["runs"]] == ["broken"]
    two = json.loads(ratchet("run", "ls", "--limit", "2", "--json").stdout)
    assert [run["id"] for run in two["runs"]] == ["going", "broken"]
    assert two["next_cursor"]


def test_an_empty_list_says_how_to_begin(ratchet: Ratchet, api_server: Any) -> None:
    result = ratchet("run", "ls")
    assert (result.exit_code, result.stdout) == (0, "no runs yet\n")
    assert "ratchet run launch" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "dome"), 2, "there is no run dome: did you mean done?"),
        (("watch", "dome"), 2, "there is no run dome: did you mean done?"),
        (("stop", "done"), 2, "run done has ended"),
        (("pause", "going"), 3, "Temporal cannot be reached"),
        (("stop", "going", "--wait"), 3, "Temporal cannot be reached"),
        (("launch", RECIPE), 3, "Temporal cannot be reached"),
        (("launch", RECIPE, "--id", "done"), 2, "a run done exists already"),
        (("launch", RECIPE, "--set", "policy.model=tinny"), 2, "did you mean tiny?"),
        (("ls", "--phase", "asleep"), 2, "phase"),
        (("resume", "done"), 2, "ratchet run extend done --steps 8"),
        (("resume", "dome"), 2, "there is no run dome: did you mean done?"),
        (("resume", "broken"), 3, "Temporal cannot be reached"),
        (("checkpoint", "going"), 3, "Temporal cannot be reached"),
        (("checkpoint", "broken"), 2, "ratchet run resume broken"),
        (("extend", "done", "--steps", "4"), 2, "more than the 4 steps that run done has done"),
        (("extend", "done", "--steps", "5"), 3, "Temporal cannot be reached"),
        (("set", "going", "policy.optimizer.lr=fast"), 2, "allowed: a number"),
        (("set", "going", "policy.optimizer.lr=-1"), 2, "policy.optimizer.lr: -1"),
        (("set", "going", "policy.optimizer.lr=1e-6"), 3, "Temporal cannot be reached"),
        (("fork", "done", "--at", "4"), 2, "has no checkpoint to fork from"),
    ],
)
def test_refusals(ratchet: Ratchet, runs: Any, words: tuple[str, ...], code: int, said: str) -> None:
    result = ratchet("run", *words)
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_the_journal_is_asked_what_a_data_plane_would_be_refilled_with(ratchet: Ratchet, runs: Any) -> None:
    result = ratchet("rebuild", "data-plane", "going")
    assert result.exit_code == 1  # the two steps on record are in no journal here
    assert result.stdout.splitlines() == [
        "data-plane of going: incomplete (8 drawn, 0 in the journal, 0 dropped)",
        "  prompts 0 to 7 were drawn since the base model",
        "  not finished, so that they are generated: prompts 0, 1, 2, 3, 4, 5, 6, 7",
        "  the run refills by itself, from the journal, before it generates anything",
    ]
    report = json.loads(ratchet("rebuild", "buffer", "going", "--json").stdout)
    assert (report["what"], report["complete"]) == ("buffer", False)


def test_without_a_stack_every_verb_says_how_to_start_one(ratchet: Ratchet, home: Home) -> None:
    for words in (["ls"], ["show", "x"], ["watch", "x"], ["stop", "x"], ["launch", RECIPE]):
        result = ratchet("run", *words)
        assert result.exit_code == 3
        assert result.stderr.count("\n") == 1
        assert "start one with `ratchet up`" in result.stderr


def test_an_api_that_is_gone_is_told_from_a_stack_that_is_not_there(
    ratchet: Ratchet, api_server: Any
) -> None:
    api_server.stop()
    result = ratchet("run", "ls")
    assert result.exit_code == 3
    assert f"http://127.0.0.1:{api_server.port} cannot be reached" in result.stderr


def test_validate_needs_no_stack(ratchet: Ratchet) -> None:
    result = ratchet("run", "validate", RECIPE, "--set", "grpo.max_num_steps=7")
    assert result.exit_code == 0
    assert "7 steps of 128 samples" in result.stdout
    assert json.loads(ratchet("run", "validate", RECIPE, "--json").stdout)["valid"] is True


def test_validate_prints_a_line_for_every_problem(ratchet: Ratchet) -> None:
    wrong = ["--set", "grpo.max_num_stepz=7", "--set", "generation.temperature=-1"]
    result = ratchet("run", "validate", RECIPE, *wrong)
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("error: generation.temperature: -1; allowed: a number > 0")
    assert second.startswith("error: grpo.max_num_stepz: unknown key")
    assert second.endswith("(did you mean grpo.max_num_steps?)")

    result = ratchet("run", "validate", RECIPE, *wrong, "--json")
    assert result.exit_code == 2
    keys = [problem["key"] for problem in json.loads(result.stdout)["errors"]]
    assert keys == ["generation.temperature", "grpo.max_num_stepz"]


def test_validate_looks_up_models_and_environments(ratchet: Ratchet, tmp_path: Path) -> None:
    wrong = ["--set", f"policy.model={tmp_path / 'nowhere'}", "--set", "environment.options.shotz=1"]
    result = ratchet("run", "validate", RECIPE, *wrong)
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert f"there is no folder {tmp_path / 'nowhere'}" in first
    assert "did you mean shots?" in second


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = "pydantic", "httpx", "yaml", "torch", "ray", "numpy", "temporalio", "rich.live"
    code = f"import ratchet.cli.main, sys; print([name for name in {heavy!r} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"


def test_the_stack_commands_are_the_supervisors_own() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "ratchet.cli.main", "up", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "--detach" in answer.stdout
    assert "--temporal" in answer.stdout
