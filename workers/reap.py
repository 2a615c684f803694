"""Ends the actors of a run's sessions and what they held:
`python -m workers.reap --run RUN (--session N | --before N)`.

A short-lived Ray driver of its own, so that the supervisor never is one; whoever starts it bounds it in time.
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from ratchet.refit.segments import SHARED_MEMORY, segment_prefix, sweep
from ratchet.spec import deadlines
from ratchet.spec.home import Home
from ratchet.spec.ids import RAY_NAMESPACE
from ratchet.spec.stack import StackState
from workers.supervisor.processes import Process, look, signal_to

ROLES = ("conductor", "trainer", "generator", "data-plane", "reservation")
"""First part of the names of a session's actors, and of what is reserved for them. Without these, the actors
of run `b` could not be told from those of a run `a-b`."""

_LOOK_EVERY = 0.02
_RAY_MUST_END_THEM = 4.0
"""Seconds after which an actor that Ray was told to kill is killed."""


def session_of(actor: str, run: str) -> int | None:
    """The session whose actor has that name; None if the run has no actor of that name."""
    match = re.fullmatch(rf"(?:{'|'.join(ROLES)})-{re.escape(run)}-(\d+)-\d+", actor)
    return int(match[1]) if match else None


def reap(run: str, wanted: Callable[[int], bool], address: str) -> list[str]:
    """Kill the run's actors of the wanted sessions: their names. They are gone from Ray's directory when this
    returns, their names are free, and on this host their processes have ended. Raises TimeoutError."""
    import ray
    from ray._private import state

    ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False, configure_logging=False)
    here = ray.get_runtime_context().get_node_id()
    living = [actor for actor in cast(dict[str, Any], state.actors()).values() if actor["State"] != "DEAD"]
    named = cast(list[dict[str, str]], ray.util.list_named_actors(all_namespaces=True))
    reaped = [
        actor["name"]
        for actor in named
        if actor["namespace"] == RAY_NAMESPACE
        and (session := session_of(actor["name"], run)) is not None
        and wanted(session)
    ]
    for name in reaped:
        ray.kill(ray.get_actor(name, namespace=RAY_NAMESPACE), no_restart=True)
    for reserved in cast(dict[str, dict[str, Any]], ray.util.placement_group_table()).values():
        session = session_of(reserved["name"], run)
        if reserved["state"] != "REMOVED" and session is not None and wanted(session):
            ray.util.remove_placement_group(ray.util.get_placement_group(reserved["name"]))
            reaped.append(reserved["name"])
    ray.shutdown()
    _wait_until_ended(
        [actor["Pid"] for actor in living if actor["Name"] in reaped and actor["Address"]["NodeID"] == here]
    )
    return reaped


def _wait_until_ended(pids: list[int]) -> None:
    """One that is stopped takes Ray a second longer; one whose GCS was executed again in between may never
    hear of it, and is ended here."""
    began = time.monotonic()
    known = {pid: process for pid in pids if (process := look(pid))}
    while remaining := [pid for pid, process in known.items() if _is_still(process)]:
        waited = time.monotonic() - began
        if waited > deadlines.PROCESSES_GONE:
            raise TimeoutError(f"the actors' processes {remaining} do not end")
        if waited > _RAY_MUST_END_THEM:
            for pid in remaining:
                signal_to(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY)


def _is_still(process: Process) -> bool:
    """Whether it is there, and no other that got its number since."""
    now = look(process.pid)
    return now is not None and (now.parent, now.session) == (process.parent, process.session)


def sweep_segments(home: Home, run: str, wanted: Callable[[int], bool]) -> list[str]:
    """Remove the shared memory of the run's wanted sessions, none of whose actors may live: a killed actor
    cleans nothing up, and a trainer's segment is as large as its model. Returns their names."""
    common = f"ratchet-{segment_prefix(home, '')}"
    owners = {path.name.removeprefix(common).rpartition("-")[0] for path in SHARED_MEMORY.glob(f"{common}*")}
    return [
        segment
        for owner in sorted(owners)
        if (session := session_of(owner, run)) is not None and wanted(session)
        for segment in sweep(segment_prefix(home, owner))
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--session", type=int)
    which.add_argument("--before", type=int)
    options = parser.parse_args()

    def wanted(session: int) -> bool:
        return session == options.session if options.before is None else session < options.before

    os.environ.pop("RAY_ADDRESS", None)
    home = Home()
    address = StackState.load(home).ray_address
    if address is None:
        sys.exit("this stack has no Ray cluster")
    for name in reap(options.run, wanted, address):
        sys.stdout.write(f"ended {name}\n")
    for segment in sweep_segments(home, options.run, wanted):
        sys.stdout.write(f"removed {segment}\n")


if __name__ == "__main__":
    main()
