"""Who is silent: read from what Temporal knows of a run's open activities."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.converter import DataConverter

from ratchet.spec import deadlines, names
from ratchet.spec.control import Diagnosis, Silent
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.problems import first_line

_ENGINES = {OpKind.ROLLOUT_BATCH: "generator", OpKind.EVALUATE: "generator"}
"""Who works on an operation; the trainer does on all others."""

_ERRANDS = {
    names.OPEN_SESSION: "supervisor",
    names.PROBE_SESSION: "supervisor",
    names.RESTART_WORKER: "supervisor",
    names.CLOSE_SESSION: "supervisor",
    names.REGISTER_RUN: "store",
    names.RECORD: "store",
    names.ADMIT: "store",
    names.RELEASE: "store",
    names.CHOOSE_CHECKPOINT: "artifacts",
    names.RETAIN: "artifacts",
}
"""Who does whatever is not an operation."""


async def diagnose(client: Client, run: str) -> Diagnosis:
    """What the run waits for: operations first, then errands."""
    description = await client.get_workflow_handle(run).describe()
    pending = [
        activity
        for activity in description.raw_description.pending_activities
        if activity.activity_type.name != names.DIAGNOSE
    ]
    beats = [await _beat(activity, client.data_converter) for activity in pending]
    silent = [_silent(activity, beat) for activity, beat in zip(pending, beats, strict=True)]
    silent.sort(key=lambda party: party.role in _ERRANDS.values())
    return Diagnosis(
        progressed_at=max((_progressed_at(beat) for beat in beats), default=0.0), silent=tuple(silent)
    )


async def _beat(pending: PendingActivityInfo, converter: DataConverter) -> Mapping[str, Any]:
    """The details of an operation's last heartbeat."""
    details: list[Any] = await converter.decode_wrapper(pending.heartbeat_details)
    return cast(dict[str, Any], details[0]) if details and isinstance(details[0], dict) else {}


def _progressed_at(beat: Mapping[str, Any]) -> float:
    return float(beat.get("progressed_at", 0.0)) if beat.get("progress") else 0.0


def _silent(pending: PendingActivityInfo, beat: Mapping[str, Any]) -> Silent:
    op = _operation(pending)
    what = f"{op.kind.value} of step {op.step}" if op else pending.activity_type.name
    engine = _ENGINES.get(op.kind, "trainer") if op else _ERRANDS.get(pending.activity_type.name, "worker")
    waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    heard = pending.last_heartbeat_time.ToMilliseconds() / 1000
    if waits and op:
        engine = "session worker"
    elif op and heard and time.time() - heard > deadlines.HEARTBEAT:
        engine = "session host"
    return Silent(role=engine, detail=f"{what}: {', '.join(_remarks(pending, beat, waits, heard))}")


def _remarks(
    pending: PendingActivityInfo, beat: Mapping[str, Any], waits: bool, heard: float
) -> Iterator[str]:
    now = time.time()
    if waits:
        yield f"nobody takes it up, for {now - pending.scheduled_time.ToMilliseconds() / 1000:.0f} s"
    elif heard:
        since = f", for {now - float(beat['progressed_at']):.0f} s" if "progressed_at" in beat else ""
        yield f"it stands at {beat['progress']!r}{since}" if beat.get("progress") else f"no progress{since}"
        yield f"last heard of {now - heard:.0f} s ago"
    else:
        yield f"nothing heard of it since it began {now - pending.last_started_time.ToSeconds():.0f} s ago"
    if pending.attempt > 1:
        failure = first_line(pending.last_failure.message) if pending.HasField("last_failure") else ""
        yield f"attempt {pending.attempt}" + (f" after {failure}" if failure else "")


def _operation(pending: PendingActivityInfo) -> OpId | None:
    try:
        return OpId.parse(pending.activity_id)
    except ValueError:
        return None
