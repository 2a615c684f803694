"""Who is silent, from what Temporal knows of open activities: the ways a run stands still, told apart."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import PendingActivityState as State
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.diagnosis import diagnose
from ratchet.spec import names

NOW = 1.7e9


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.diagnosis.time", SimpleNamespace(time=lambda: NOW))


def pending(id: str, kind: str, state: str = "STARTED", **seconds_ago: float) -> PendingActivityInfo:
    """`scheduled`, `started` and `heard`: seconds ago."""
    info = PendingActivityInfo(
        activity_id=id, state=State.Value(f"PENDING_ACTIVITY_STATE_{state}"), attempt=1
    )
    info.activity_type.name = kind
    for name, field in (
        ("scheduled", info.scheduled_time),
        ("started", info.last_started_time),
        ("heard", info.last_heartbeat_time),
    ):
        if name in seconds_ago:
            field.FromMilliseconds(int(1000 * (NOW - seconds_ago[name])))
    return info


def beat(info: PendingActivityInfo, progress: str, seconds_ago: float) -> PendingActivityInfo:
    details = {"progress": progress, "progressed_at": NOW - seconds_ago, "submits": 1, "starts": 1}
    payload = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(details).encode())
    info.heartbeat_details.payloads.append(payload)
    return info


class Temporal:
    """A client that knows one workflow, with these activities pending."""

    data_converter = pydantic_data_converter

    def __init__(self, *activities: PendingActivityInfo) -> None:
        self._activities = activities

    def get_workflow_handle(self, run: str) -> "Temporal":
        return self

    async def describe(self) -> Any:
        return SimpleNamespace(raw_description=SimpleNamespace(pending_activities=self._activities))


async def test_engines_that_stand_still_under_a_session_that_answers():
    rollout = beat(
        pending("r/1/7/rollout_batch", "rollout_batch", heard=2, scheduled=999), "7 of 12 groups", 600
    )
    diagnosis = await diagnose(Temporal(rollout), "r")
    (party,) = diagnosis.silent
    assert party.role == "generator"
    assert party.detail.startswith("rollout_batch of step 7: it stands at '7 of 12 groups', for 600 s")
    assert diagnosis.progressed_at == pytest.approx(NOW - 600)


@pytest.mark.parametrize(
    ("activity", "role", "said"),
    [
        (pending("r/1/7/train_step", "train_step", heard=1), "trainer", "train_step of step 7"),
        (pending("r/1/7/train_step", "train_step", heard=40), "session host", "last heard of 4"),
        (
            pending("r/1/7/refit", "refit", state="SCHEDULED", scheduled=25),
            "session worker",
            "nobody takes it up, for 2",
        ),
        (
            pending("4", names.OPEN_SESSION, state="SCHEDULED", scheduled=99),
            "supervisor",
            "nobody takes it up",
        ),
        (pending("4", names.RECORD, started=3), "store", "nothing heard of it since it began"),
    ],
)
async def test_each_silent_party_is_named(activity: PendingActivityInfo, role: str, said: str):
    (party,) = (await diagnose(Temporal(activity), "r")).silent
    assert party.role == role
    assert said in party.detail


async def test_a_failing_attempt_says_why():
    record = pending("4", names.RECORD, state="SCHEDULED", scheduled=300)
    record.attempt = 9
    record.last_failure.message = "store /s.db: database is locked"
    (party,) = (await diagnose(Temporal(record), "r")).silent
    assert "attempt 9 after store /s.db: database is locked" in party.detail


async def test_operations_come_before_errands_and_the_question_itself_is_left_out():
    activities = (
        pending("1", names.RECORD, started=1),
        pending("2", names.DIAGNOSE, started=0),
        pending("r/1/7/train_step", "train_step", heard=1),
    )
    diagnosis = await diagnose(Temporal(*activities), "r")
    assert [party.role for party in diagnosis.silent] == ["trainer", "store"]
    assert diagnosis.progressed_at == 0.0


async def test_nothing_pending_is_nobody_silent():
    assert (await diagnose(Temporal(), "r")).silent == ()
