"""Forking: a new run that starts from a checkpoint of another one, with some keys of its spec changed."""

import json
from collections.abc import Iterator

from starlette.concurrency import run_in_threadpool

from api.beginning import begin
from api.launching import new_id
from api.presenting import present
from api.problems import InvalidOverrides
from api.resuming import changed_values, extended
from api.roots import check_roots
from api.services import Services
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import Manifest
from ratchet.preflight import check_runnable
from ratchet.spec import names
from ratchet.spec.faults import Conflict
from ratchet.spec.loading import parse_spec, spec_from_mapping
from ratchet.spec.problems import InvalidSpec, SpecProblem
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import CheckpointRef, ForkOrigin, RunInput, RunState
from ratchet.spec.views import ForkRequest, RunView
from ratchet.store import RunRecord

KEPT = {
    "policy.model": "the checkpoint is of this model",
    "policy.backend": "the checkpoint is this trainer's",
    "seed": "the data goes on where it was, so the seed stays its own",
}
"""Keys that a fork has from its parent, and why."""


async def fork(services: Services, parent: RunRecord, request: ForkRequest) -> RunView:
    """Start a run from a checkpoint of `parent`: weights, optimizer, data cursor and RNG go on from there.

    Raises InvalidSpec with every problem, Conflict if there is no such checkpoint, and what a launch raises.
    """
    manifest = await run_in_threadpool(_checkpoint, services, parent, request.at)
    spec = await run_in_threadpool(_spec, services, parent, request)
    run = await new_id(services, spec, request.run_id)
    folder = services.artifacts.local_folder(manifest.key)
    state = RunState(
        run=run,
        forked_from=ForkOrigin(
            run=parent.id,
            checkpoint=CheckpointRef(
                path=str(folder),
                digest=manifest.state_digest,
                version=manifest.version,
                cursor=manifest.cursor,
            ),
        ),
    )
    record = await begin(services, RunInput(spec=spec, state=state))
    return await present(services, record)


def _checkpoint(services: Services, parent: RunRecord, step: int) -> Manifest:
    """The parent's checkpoint of a step on the path to its head."""
    path = services.store.path(parent.id)
    manifests, _ = list_manifests(services.artifacts, parent.id)
    there: dict[int, Manifest] = {}
    for manifest in manifests:  # the newest incarnation first
        if manifest.incarnation in path:
            last = path[manifest.incarnation]
            if last is None or manifest.step <= last:
                there.setdefault(manifest.step, manifest)
    if step in there:
        return there[step]
    if not there:
        raise Conflict(
            f"run {parent.id} has no checkpoint to fork from: "
            f"make one with `ratchet run checkpoint {parent.id}`"
        )
    nearest = sorted(sorted(there), key=lambda known: abs(known - step))[:5]
    raise Conflict(
        f"run {parent.id} has no checkpoint of step {step}: fork at step "
        f"{' or '.join(str(known) for known in sorted(nearest))}"
    )


def _spec(services: Services, parent: RunRecord, request: ForkRequest) -> RunSpec:
    """The parent's spec as it was in effect at that step, with the overrides. Raises InvalidSpec."""
    inherited = extended(spec_from_mapping(parent.spec), parent.max_num_steps)
    events = services.store.events_about(parent.id, names.TOPIC_HYPERPARAMETERS)
    changes = [change for change in changed_values(events) if change.from_step <= request.at + 1]
    in_effect = [f"{key}={json.dumps(value)}" for change in changes for key, value in change.values.items()]
    before = parse_spec(inherited.model_dump_json(), in_effect)
    try:
        spec = parse_spec(before.model_dump_json(), request.overrides)
        if problems := list(_problems(before, spec, request.at)):
            raise InvalidSpec(problems)
        check_roots(spec, services.settings.allowed_roots)
        check_runnable(spec)
    except InvalidSpec as error:
        raise InvalidOverrides(error.problems) from None
    return spec


def _problems(before: RunSpec, spec: RunSpec, at: int) -> Iterator[SpecProblem]:
    for key, why in KEPT.items():
        has, wanted = value_of(before, key), value_of(spec, key)
        if wanted != has:
            yield SpecProblem(key=key, found=json.dumps(wanted), allowed=json.dumps(has), hint=why)
    if spec.grpo.max_num_steps <= at:
        yield SpecProblem(
            key="grpo.max_num_steps",
            found=str(spec.grpo.max_num_steps),
            allowed=f"an integer > {at}",
            hint="a fork goes on from its parent's step",
        )


def value_of(spec: RunSpec, key: str) -> object:
    """The value of a dotted key."""
    value: object = spec
    for part in key.split("."):
        value = getattr(value, part)
    return value
