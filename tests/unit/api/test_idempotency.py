"""A launch that is sent again is the same launch, also at the same time and after the API was killed."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.control import ControlActivities
from api.app import create_app
from ratchet.spec import names
from ratchet.spec.home import Home
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.stack import StackState
from ratchet.store import IdempotencyKeys, Store
from workers.testing.scripted import ScriptedStack

RUNS = 200
EACH = 20
AT_ONCE = 60

SPEC: dict[str, Any] = {
    "name": "twice",
    "policy": {"model": "tiny", "train_micro_batch_size": 2},
    "generation": {"max_new_tokens": 4},
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2},
    "environment": {"name": "arithmetic"},
    "evaluation": {"num_problems": 0},
}


def with_key(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


async def test_a_key_is_one_run_and_another_body_is_refused(
    api: httpx.AsyncClient, stack: ScriptedStack
) -> None:
    headers = with_key(uuid.uuid4().hex)
    first = await api.post("/v1/runs", json={"spec": SPEC}, headers=headers)
    assert (first.status_code, first.headers.get("idempotency-replayed")) == (201, None)
    # Spaces and the order of keys do not make it another request.
    again = await api.post("/v1/runs", json={"spec": dict(reversed(SPEC.items()))}, headers=headers)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    other = await api.post("/v1/runs", json={"spec": {**SPEC, "seed": 1}}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (422, "urn:ratchet:problem:idempotency-key-reused")
    assert len(stack.store.list_runs()) == 1


async def test_a_key_taken_by_an_api_that_was_killed_before_it_started_anything(
    api: httpx.AsyncClient, stack: ScriptedStack
) -> None:
    key = uuid.uuid4().hex
    begun = await api.post("/v1/runs", json={"spec": SPEC}, headers=with_key(key))
    claim = IdempotencyKeys(stack.store).get(key)
    assert claim is not None
    assert claim.run == begun.json()["id"]
    killed = uuid.uuid4().hex
    IdempotencyKeys(stack.store).claim(
        killed, run=f"twice-{killed[:8]}", body_digest=claim.body_digest, at=0.0
    )
    answer = await api.post("/v1/runs", json={"spec": SPEC}, headers=with_key(killed))
    assert (answer.status_code, answer.json()["id"]) == (201, f"twice-{killed[:8]}")


async def test_a_key_does_not_take_over_a_run_that_somebody_else_launched(
    api: httpx.AsyncClient, launch: Any, run: str, scripted_spec: Any, stack: ScriptedStack
) -> None:
    await launch(run, scripted_spec())
    key = uuid.uuid4().hex
    taken = await api.post("/v1/runs", json={"spec": SPEC, "run_id": run}, headers=with_key(key))
    assert taken.status_code == 409
    assert IdempotencyKeys(stack.store).get(key) is None


@workflow.defn(name=names.RUN_WORKFLOW, sandboxed=False)
class OnRecordAtOnce:
    """A run that does nothing but put itself on record."""

    @workflow.run
    async def run(self, begin: dict[str, Any]) -> None:
        request = {
            "run": begin["state"]["run"],
            "spec": begin["spec"],
            "workflow_run_id": workflow.info().run_id,
            "incarnation": 1,
        }
        ended = {"kind": "state", "phase": "completed", "step": 0}
        record = {"run": request["run"], "incarnation": 1, "at": 1.0, "entries": [ended]}
        for name, argument in ((names.REGISTER_RUN, request), (names.RECORD, record)):
            await workflow.execute_activity(name, argument, start_to_close_timeout=timedelta(seconds=10))


@pytest_asyncio.fixture(loop_scope="session")
async def crowd(
    ratchet_temporal: WorkflowEnvironment, home: Home
) -> AsyncIterator[tuple[httpx.AsyncClient, Store]]:
    """The API over runs that do nothing."""
    client: Client = ratchet_temporal.client
    home.root.mkdir()
    state = StackState(
        supervisor_pid=1,
        temporal_address=client.service_client.config.target_host,
        namespace=client.namespace,
    )
    home.state_file.write_text(state.model_dump_json())
    store = Store(home.store_url)
    store.migrate()
    app = create_app(home)
    control = ControlActivities(store, home)
    activities = [control.register_run, control.record]
    async with (
        Worker(client, task_queue=CONTROL_QUEUE, workflows=[OnRecordAtOnce], activities=activities),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as api,
    ):
        yield api, store
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_200_launches_with_20_duplicate_keys_each_are_200_runs(
    crowd: tuple[httpx.AsyncClient, Store],
) -> None:
    api, store = crowd
    room = asyncio.Semaphore(AT_ONCE)
    keys = [uuid.uuid4().hex for _ in range(RUNS)]

    async def launch(key: str) -> tuple[str, str]:
        async with room:
            answer = await api.post("/v1/runs", json={"spec": SPEC}, headers=with_key(key))
        assert answer.status_code == 201, answer.text
        return key, answer.json()["id"]

    # Duplicates side by side: most of them come while the first is still being started.
    answers = await asyncio.gather(*(launch(key) for key in keys for _ in range(EACH)))
    assert Counter(key for key, _ in answers) == dict.fromkeys(keys, EACH)
    assert len(set(answers)) == RUNS
    assert len({run for _, run in answers}) == RUNS
    assert {record.id for record in store.list_runs(limit=RUNS + 1)} == {run for _, run in answers}
