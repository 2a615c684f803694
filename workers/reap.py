"""Ends the actors of a session and what they held: `python -m workers.reap --run RUN --session N`.

A short-lived Ray driver of its own, so that the supervisor never is one; whoever starts it bounds it in time.
"""

import argparse
import os
import re
import sys
from typing import cast

from ratchet.refit.segments import segment_prefix, sweep
from ratchet.spec.home import Home
from ratchet.spec.ids import RAY_NAMESPACE, actor_name
from ratchet.spec.stack import StackState

ROLES = ("conductor", "trainer", "generator", "data-plane")
"""First part of the names of a session's actors. Without them, the actors of run `b` could not be told from
those of a run `a-b`."""


def belongs(name: str, run: str, session: int) -> bool:
    """Whether an actor of that name belongs to the session."""
    rank = re.search(r"-(\d+)$", name)
    return rank is not None and any(name == actor_name(role, run, session, int(rank[1])) for role in ROLES)


def reap(run: str, session: int, address: str) -> list[str]:
    """Kill them: their names. They are gone from Ray's directory when this returns, and their names free."""
    import ray

    ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False, configure_logging=False)
    reaped: list[str] = []
    actors = cast(list[dict[str, str]], ray.util.list_named_actors(all_namespaces=True))
    for actor in actors:
        if actor["namespace"] == RAY_NAMESPACE and belongs(actor["name"], run, session):
            ray.kill(ray.get_actor(actor["name"], namespace=RAY_NAMESPACE), no_restart=True)
            reaped.append(actor["name"])
    ray.shutdown()
    return reaped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--session", type=int, required=True)
    options = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    address = StackState.load(Home()).ray_address
    if address is None:
        sys.exit("this stack has no Ray cluster")
    for name in reap(options.run, options.session, address):
        # A killed actor cleans nothing up, and a trainer's segment is as large as its model.
        segments = sweep(segment_prefix(Home(), name))
        sys.stdout.write(f"ended {name}{f', removed {len(segments)} segments' if segments else ''}\n")


if __name__ == "__main__":
    main()
