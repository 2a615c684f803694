"""Law 15: a run that stands still says so, and who is silent."""

from typing import Any

from ratchet.spec import names
from ratchet.spec.ids import OpKind
from ratchet.spec.state import RunPhase

Stack = Any  # tests/workflows/conftest.py: Bench


async def test_a_stalled_run_names_who_is_silent_until_something_moves(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    stack.script.progress[OpKind.ROLLOUT_BATCH, 2] = "7 of 12 groups"
    handle = await stack.start(stack.spec(3, runtime={"stalled_after_s": 10}), run)
    await stack.in_phase(run, RunPhase.STALLED)
    status = await stack.status(run)
    assert status.incident.startswith("generator: rollout_batch of step 2: it stands at '7 of 12 groups'")
    (incident,) = await stack.on_record(lambda: stack.store.incidents(run))
    assert incident.data["lost"] == "generator"
    await stack.on_record(lambda: stack.store.get_run(run).phase is RunPhase.STALLED)
    await stack.update(run, names.UPDATE_PAUSE)  # a stalled run can be steered
    rollout.set()
    await stack.in_phase(run, RunPhase.PAUSED)
    await stack.on_record(lambda: "moving" in stack.topics(run))
    await stack.update(run, names.UPDATE_RESUME)
    assert (await handle.result()).phase is RunPhase.COMPLETED


async def test_a_healthy_run_pays_one_timer(stack: Stack, run: str) -> None:
    handle = await stack.start(stack.spec(8), run)
    await handle.result()
    events = [event async for event in handle.fetch_history_events()]
    assert sum(event.HasField("timer_started_event_attributes") for event in events) == 1
