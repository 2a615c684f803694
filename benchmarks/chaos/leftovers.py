"""What is left on this host of sessions that were closed."""

import time

from ratchet.refit.segments import SHARED_MEMORY
from ratchet.spec.home import Home
from workers.supervisor.processes import arguments, of_stack
from workers.supervisor.state import SupervisorState

GONE_WITHIN = 15.0
"""Ray takes a moment to end what it was told to end."""
_LOOK_EVERY = 0.2
_OF_RAYLET = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE")
"""Children of a raylet that belong to nobody: its agents, and workers that it started ahead of need."""


def lasting_leftovers(home: Home) -> list[str]:
    """Processes, shared memory and folders that a stack without a session does not have, once all that was on
    its way out is gone."""
    end = time.monotonic() + GONE_WITHIN
    while (found := leftovers(home)) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY)
    return found


def leftovers(home: Home) -> list[str]:
    """What there is at this moment beyond the stack's own parts."""
    state = SupervisorState.load(home)
    parts = {part.name: part.pid for part in state.parts if not part.name.startswith("session-")}
    own, raylet = {state.supervisor_pid, *parts.values()}, parts.get("ray")
    found = [
        f"process {process.pid}: {' '.join(argv)[:100]}"
        for process in of_stack(home)
        if process.pid not in own
        and (argv := arguments(process.pid))
        and not (process.parent == raylet and argv[0] in _OF_RAYLET)
    ]
    found += [f"shared memory {path.name}" for path in SHARED_MEMORY.glob(f"ratchet-{home.tag}*")]
    found += [f"session folder {path.name}" for path in (home.root / "sessions").glob("*")]
    return found
