"""`ratchet down` leaves nothing behind but what is worth keeping."""

from pathlib import Path

import pytest

from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_down_leaves_no_process_segment_or_folder_and_up_shows_the_old_runs(
    tmp_path: Path, models: Path
) -> None:
    stack = Stack(tmp_path, models)
    stack.ratchet("up", "--detach")
    try:
        stack.launch("before", *QUICK)
        assert stack.ended("before")["phase"] == "completed"
        # One more in the middle of its work: actors, a mapped segment, an open journal.
        stack.failpoints.arm("train_step.leased", "2 hold")
        stack.launch("running", *QUICK)
        stack.failpoints.wait_hit("train_step.leased")
        assert stack.segments()
        stack.ratchet("down")
        assert stack.processes() == []
        assert stack.segments() == []
        assert not stack.home.ray_temp.exists()

        stack.failpoints.clear()
        stack.ratchet("up", "--detach")
        runs = {run["id"]: run["phase"] for run in stack.json("run", "ls")["runs"]}
        assert runs["before"] == "completed"
        assert runs["running"] not in ("completed", "stopped")
        assert len(stack.store.steps("before")) == 3
    finally:
        stack.ratchet("down")
