"""Law 15: a run that stands still says so, and who is silent."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from ratchet.spec.control import EventEntry, Silent
from ratchet.spec.faults import Fault, FaultKind, Incident
from ratchet.spec.state import RunPhase
from workflows.life import Life
from workflows.records import diagnose

IDLE = (RunPhase.QUEUED, RunPhase.PAUSED)
"""Phases in which nothing is meant to move."""


async def watch(life: Life) -> None:
    """Look after a run for as long as it lasts: one timer per deadline, and nothing per operation.

    What the workflow cannot see (groups of a rollout that goes on) it asks for, once nothing else has been
    committed for the deadline.
    """
    state = life.state
    while not state.phase.final:
        await workflow.wait_condition(lambda: state.phase not in IDLE)
        remaining = life.spec.runtime.stalled_after_s - (workflow.time() - life.progressed_at)
        if remaining > 0:
            await workflow.sleep(remaining)
        elif silent := await _silent(life):
            await _stalled(life, silent)


async def _silent(life: Life) -> tuple[Silent, ...]:
    """Who the run waits for; nobody if something was committed after all."""
    known = life.progressed_at
    diagnosis = await diagnose(life.state.run)
    if diagnosis and diagnosis.progressed_at > known:
        life.progressed_at = max(life.progressed_at, min(diagnosis.progressed_at, workflow.time()))
    phase = life.state.phase
    if life.progressed_at > known or phase in IDLE or phase.final:
        return ()
    if diagnosis and diagnosis.silent:
        return diagnosis.silent
    return (Silent(role="workflow", detail="; ".join(life.status().doing) or "it waits for nothing"),)


async def _stalled(life: Life, silent: tuple[Silent, ...]) -> None:
    """Say so, until something is committed."""
    state, before, since = life.state, life.state.phase, life.progressed_at
    incident = Incident(
        lost=silent[0].role,
        cause="; ".join(party.detail for party in silent),
        detected_at=workflow.time(),
        done=f"nothing was committed for {workflow.time() - since:.0f} s; the run waits",
    )
    fault = Fault(kind=FaultKind.UNAVAILABLE, message=incident.cause, role=incident.lost)
    life.enter(RunPhase.STALLED, fault)
    life.note(f"stalled/{incident.detected_at}", incident)
    while not await _happens(
        lambda: life.progressed_at != since or state.phase is not RunPhase.STALLED,
        life.spec.runtime.stalled_after_s,
    ):
        await _silent(life)
    ended_at = workflow.time()
    event = EventEntry(
        key=f"stalled/{incident.detected_at}/over",
        topic="moving",
        message=f"something was committed again after {ended_at - incident.detected_at:.0f} s",
    )
    life.records.start("moving again", event)
    if state.phase is RunPhase.STALLED:
        life.enter(before)


async def _happens(condition: Callable[[], bool], within: float) -> bool:
    try:
        await workflow.wait_condition(condition, timeout=timedelta(seconds=within))
    except TimeoutError:
        return False
    return True
