"""Whose attempts may be failed: those of workers that are known to be gone, and of nobody else."""

import subprocess
import sys

from workers.orphans import here, is_gone

ASK = "from workers.orphans import here; print(here('q'))"


def test_a_worker_is_gone_once_its_process_has_ended() -> None:
    ended = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert is_gone(ended.stdout.strip())
    assert not is_gone(here("q")), "this very process lives"


def test_what_runs_elsewhere_or_is_named_otherwise_is_left_alone() -> None:
    host, pid, boot = here("q").partition("@")[2].split("/")
    assert not is_gone(f"q@other-{host}/{pid}/{boot}")
    assert not is_gone("q@" + boot)
    assert not is_gone("somebody")
