"""The GPUs of a session: reserved in Ray all at once, or not at all.

Two sessions that each reserved a part of what both need would wait for each other for ever. And a fraction of
a GPU by itself might be one of another session's.
"""

from typing import Any, cast

import ray
from ray.exceptions import RaySystemError
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ratchet.spec.faults import SpecError
from ratchet.spec.ids import actor_name
from ratchet.spec.placement import PlacementSpec

RESERVATION = "reservation"
"""First part of its name, as of an actor's."""
ENGINES = ("trainer", "generator")


def actor_options(placement: PlacementSpec, run: str, session: int, role: str) -> dict[str, Any]:
    """What the session's actor of that role is to be made with. Raises SpecError if the cluster has not got
    that much."""
    if not placement.gpus or role not in ENGINES:
        return {}
    found = cast(dict[str, float], ray.cluster_resources()).get("GPU", 0.0)
    if found < placement.gpus_of_a_session:
        raise SpecError(
            f"placement.gpus is {placement.gpus}, for which a {placement.kind} session needs "
            f"{placement.gpus_of_a_session} GPUs, but the Ray cluster has {found:g}: lower it, or add a node"
        )
    index = 0 if placement.kind == "colocated" else ENGINES.index(role)
    strategy = PlacementGroupSchedulingStrategy(_reserved(placement, run, session), index)
    return {"num_gpus": placement.gpus_of_an_engine, "scheduling_strategy": strategy}


def _reserved(placement: PlacementSpec, run: str, session: int) -> PlacementGroup:
    """The session's, made if there is none. It outlives whoever makes it."""
    name = actor_name(RESERVATION, run, session)
    try:
        return get_placement_group(name)
    except ValueError:
        pass
    try:
        # One host: weights move through its memory (refit.transport: ipc).
        return placement_group(
            [{"GPU": 1}] * placement.gpus_of_a_session, "STRICT_PACK", name=name, lifetime="detached"
        )
    except RaySystemError:
        return get_placement_group(name)  # somebody else was the first
