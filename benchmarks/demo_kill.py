"""The demo, with its Ray head killed in the middle: `python -m benchmarks.demo_kill`, on a stack that is up.

What `make demo-kill` runs. The run is watched as `make demo` shows it; nobody does anything but the killing.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from ratchet.cli.client import Api
from ratchet.spec.faults import RatchetError, Unavailable
from ratchet.spec.home import Home
from workers.supervisor.state import SupervisorState

RECIPE = Path(__file__).parents[1] / "recipes" / "smollm2-arithmetic.yaml"
LOOK_EVERY = 0.5
HEAD = "ray"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--at", type=int, default=12, help="kill the head once so many steps are done")
    parser.add_argument("--set", action="append", default=["checkpointing.every=5"], metavar="KEY=VALUE")
    options = parser.parse_args()
    run = f"demo-kill-{secrets.token_hex(3)}"
    home = Home()
    words = [word for setting in options.set for word in ("--set", setting)]
    command = [str(Path(sys.executable).parent / "ratchet"), "run", "launch", str(options.recipe)]
    launch = subprocess.Popen([*command, "--id", run, *words, "--wait"])
    try:
        with Api(home) as api:
            if _reached(api, run, options.at, launch):
                _kill_the_head(home, options.at)
            code = launch.wait()
            _tell(api, run)
    finally:
        launch.terminate()
        launch.wait()
    return code


def _reached(api: Api, run: str, step: int, launch: "subprocess.Popen[bytes]") -> bool:
    """Wait for the step; False if the launch ended before."""
    while launch.poll() is None:
        try:
            if api.run(run).step >= step:
                return True
        except (RatchetError, Unavailable):
            pass  # it is not on record yet
        time.sleep(LOOK_EVERY)
    return False


def _kill_the_head(home: Home, step: int) -> None:
    parts = {part.name: part for part in SupervisorState.load(home).parts}
    pid = parts[HEAD].pid
    assert pid is not None
    _say(f"after step {step}: SIGKILL to the Ray head (raylet, pid {pid}), and with it to every actor")
    os.kill(pid, signal.SIGKILL)


def _tell(api: Api, run: str) -> None:
    for incident in reversed(api.run(run).incidents):
        took = "" if incident.seconds is None else f", {incident.seconds:.1f} s after it was noticed"
        _say(f"{incident.lost} lost: {incident.cause}")
        _say(f"{incident.done}{took}")


def _say(text: str) -> None:
    sys.stdout.write(f"── {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
