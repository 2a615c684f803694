"""Launching: check everything first, start once, and leave nothing half-started behind."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from api.beginning import begin, begin_or_join
from api.presenting import present
from api.problems import KeyReused
from api.roots import check_roots
from api.services import Services
from ratchet.artifacts.beginnings import BEGINNING_NAME, read_beginning
from ratchet.preflight import check_runnable
from ratchet.spec import deadlines
from ratchet.spec.faults import Conflict, Unavailable
from ratchet.spec.loading import spec_from_mapping
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunInput, RunState
from ratchet.spec.views import LaunchRequest, RunView
from ratchet.store.idempotency import Claim


@dataclass(frozen=True, slots=True)
class Launched:
    view: RunView
    repeated: bool
    """The key stood for this launch already."""


async def launch(services: Services, request: LaunchRequest, key: str | None, who: str) -> Launched:
    """Start a run and return it once it is on record. Raises InvalidSpec, Conflict, TooManyLaunches,
    Unavailable, KeyReused, or what made its workflow fail before that.

    With a key it is one run however often it is asked for, also at the same time and over the death of this
    process: the key stands for a workflow id, and a workflow id is started once.
    """
    if key is None:
        services.pace.take(who)
        spec = await _checked(services, request)
        run = await new_id(services, spec, request.run_id)
        record = await begin(services, RunInput(spec=spec, state=RunState(run=run)))
        return Launched(await present(services, record), repeated=False)
    async with _alone(services, key):  # so that only the first one is looked at, and started
        claim, repeated = await _claimed(services, request, key, who)
        record = await run_in_threadpool(services.store.get_run, claim.run)
        if record is None:
            first = RunInput(spec=spec_from_mapping(request.spec), state=RunState(run=claim.run))
            record = await begin_or_join(services, first)
    return Launched(await present(services, record), repeated)


@asynccontextmanager
async def _alone(services: Services, key: str) -> AsyncIterator[None]:
    """One launch of a key at a time, in this process. Raises Unavailable."""
    lock = services.claiming.setdefault(key, asyncio.Lock())
    try:
        async with asyncio.timeout(deadlines.LAUNCH):
            await lock.acquire()
    except TimeoutError:
        raise Unavailable("a launch with this key is still under way: try again") from None
    try:
        yield
    finally:
        lock.release()


async def _claimed(services: Services, request: LaunchRequest, key: str, who: str) -> tuple[Claim, bool]:
    """What the key stands for, and whether it did before."""
    digest = _digest(request)
    claim = await run_in_threadpool(services.keys.get, key)
    repeated = claim is not None
    if claim is None:
        services.pace.take(who)
        spec = await _checked(services, request)
        wanted = request.run_id or f"{spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        try:
            await new_id(services, spec, wanted)
            async with services.writing:
                claim = await run_in_threadpool(
                    services.keys.claim, key, run=wanted, body_digest=digest, at=time.time()
                )
        except Conflict:
            # Taken: by this very launch, asked for a moment earlier, or by another one.
            claim, repeated = await run_in_threadpool(services.keys.get, key), True
            if claim is None:
                raise
    if claim.body_digest != digest:
        raise KeyReused(f"this key launched run {claim.run} from another request: use a new key")
    return claim, repeated


async def _checked(services: Services, request: LaunchRequest) -> RunSpec:
    spec = spec_from_mapping(request.spec)
    await run_in_threadpool(check_roots, spec, services.settings.allowed_roots)
    await run_in_threadpool(check_runnable, spec)
    return spec


def _digest(request: LaunchRequest) -> str:
    """Of what is asked for, however it is spaced and ordered."""
    text = json.dumps([request.run_id, request.spec], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def new_id(services: Services, spec: RunSpec, wanted: str | None) -> str:
    """The id of a new run: `wanted`, or one made up. Raises Conflict if something of such a run exists:
    Temporal forgets ended workflows; store and artifacts do not."""
    run = wanted or f"{spec.name}-{secrets.token_hex(3)}"
    if await run_in_threadpool(services.store.get_run, run):
        raise Conflict(f"a run {run} exists already: choose another id, or leave it out")
    there = await run_in_threadpool(services.artifacts.list, f"runs/{run}")
    if set(there) - {BEGINNING_NAME}:  # that alone: it was asked for before, and may be asked for again
        known = await run_in_threadpool(read_beginning, services.artifacts, run)
        hint = f", or go on with that run by `ratchet run resume {run}`" if known else ""
        raise Conflict(f"there are artifacts of a run {run} already: choose another id{hint}")
    return run
