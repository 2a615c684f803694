"""A launch that is sent again is the same launch, also at the same time and after the API was killed."""

import uuid
from typing import Any

import httpx
from temporalio.testing import WorkflowEnvironment

from benchmarks.launches import crowded, measure
from ratchet.spec.home import Home
from ratchet.store import IdempotencyKeys
from workers.testing.scripted import ScriptedStack

LAUNCHES, EACH = 15, 10

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


async def test_launches_sent_again_at_the_same_time_are_one_run_each(
    ratchet_temporal: WorkflowEnvironment, home: Home
) -> None:
    """`python -m benchmarks.launches` does it with 200."""
    async with crowded(ratchet_temporal.client, home) as crowd:
        answer = await measure(crowd, LAUNCHES, EACH)
    assert (answer["runs"], answer["workflows"], answer["contradictions"]) == (LAUNCHES, LAUNCHES, 0)
