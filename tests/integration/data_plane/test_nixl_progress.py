"""What a process pays for having a NIXL agent."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

IDLE = """
import os, sys, time
from workers.actors.nixl_progress import rest_between_looks
if sys.argv[1] == "rests":
    rest_between_looks()
from nixl._api import nixl_agent, nixl_agent_config
agent = nixl_agent("idle", nixl_agent_config(backends=["UCX"]))
before = time.process_time()
time.sleep(1.0)
print("cpu", time.process_time() - before, flush=True)
os._exit(0)  # or the agent would take the process down at its end
"""


@pytest.mark.parametrize(("how", "low", "high"), [("rests", 0.0, 0.2), ("as it comes", 0.2, 2.0)])
def test_an_idle_agent_leaves_the_core_to_others(how: str, low: float, high: float) -> None:
    pytest.importorskip("nixl", exc_type=ImportError)
    done = subprocess.run([sys.executable, "-c", IDLE, how], capture_output=True, text=True, check=True)
    seconds = float(done.stdout.split("cpu ")[1].split()[0])
    assert low <= seconds < high  # the second case: once it is not so, nixl_progress can go
