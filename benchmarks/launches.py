"""Launches that are sent again and again at the same time: `python -m benchmarks.launches`.

200 launches, each sent 20 times with one idempotency key, to two APIs over one store and one Temporal server.
Runs do nothing but put themselves on record.

JSON: `launches`, `requests`, `runs` in the store and `workflows` that Temporal started (both as many as
launches), `contradictions` (keys answered with several runs, runs that only one side knows: 0), `seconds`.
"""

import asyncio
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from activities.control import ControlActivities
from api.app import create_app
from benchmarks.report import Report, arguments
from ratchet.spec import names
from ratchet.spec.home import Home
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.stack import StackState
from ratchet.store import Store
from workers.testing.servers import dev_server

LAUNCHES, QUICK_LAUNCHES = 200, 20
EACH = 20
AT_ONCE = 60
APIS = 2
LISTED_WITHIN = 10.0


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


@dataclass(frozen=True)
class Crowded:
    apis: list[httpx.AsyncClient]
    store: Store
    client: Client


@asynccontextmanager
async def crowded(client: Client, home: Home) -> AsyncIterator[Crowded]:
    """APIs over runs that do nothing, their store, and Temporal."""
    home.root.mkdir(exist_ok=True)
    address = client.service_client.config.target_host
    state = StackState(supervisor_pid=1, temporal_address=address, namespace=client.namespace)
    home.state_file.write_text(state.model_dump_json())
    store = Store(home.store_url)
    store.migrate()
    control = ControlActivities(store, home)
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        activities = [control.register_run, control.record]
        worker = Worker(client, task_queue=CONTROL_QUEUE, workflows=[OnRecordAtOnce], activities=activities)
        await stack.enter_async_context(worker)
        apis = []
        for app in [create_app(home) for _ in range(APIS)]:
            await stack.enter_async_context(app.router.lifespan_context(app))
            api = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
            apis.append(await stack.enter_async_context(api))
        yield Crowded(apis, store, client)


async def measure(crowd: Crowded, launches: int, each: int) -> dict[str, Any]:
    """Raises RuntimeError if one of the requests is refused."""
    name = f"crowd-{uuid.uuid4().hex[:6]}"
    spec = {
        "name": name,
        "policy": {"model": "tiny", "train_micro_batch_size": 2},
        "generation": {"max_new_tokens": 4},
        "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2},
        "environment": {"name": "arithmetic"},
        "evaluation": {"num_problems": 0},
    }
    room, answered = asyncio.Semaphore(AT_ONCE), defaultdict[str, set[str]](set)

    async def launch(key: str, number: int) -> None:
        async with room:
            answer = await crowd.apis[number % APIS].post(
                "/v1/runs", json={"spec": spec}, headers={"Idempotency-Key": key}
            )
        if answer.status_code != httpx.codes.CREATED:
            raise RuntimeError(answer.text)
        answered[key].add(answer.json()["id"])

    # Duplicates side by side: most of them come while the first is still being started.
    begun, keys = time.perf_counter(), [uuid.uuid4().hex for _ in range(launches)]
    await asyncio.gather(*(launch(key, number) for key in keys for number in range(each)))
    seconds = time.perf_counter() - begun
    told = {run for runs in answered.values() for run in runs}
    recorded = {run.id for run in crowd.store.list_runs(limit=2 * launches, recipe=name)}
    return {
        "launches": launches,
        "requests": launches * each,
        "runs": len(recorded),
        "workflows": await _started(crowd.client, name, launches),
        "contradictions": sum(len(runs) != 1 for runs in answered.values()) + len(told ^ recorded),
        "seconds": round(seconds, 1),
    }


async def _started(client: Client, name: str, wanted: int) -> int:
    """How many workflows there are, once Temporal has listed as many as there should be."""
    give_up = time.monotonic() + LISTED_WITHIN
    while True:
        mine = client.list_workflows(f"WorkflowId STARTS_WITH '{name}-'")
        found = len([execution async for execution in mine])
        if found >= wanted or time.monotonic() > give_up:
            return found
        await asyncio.sleep(0.1)


async def _alone(launches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ratchet-launches-") as folder:
        async with dev_server() as temporal, crowded(temporal.client, Home(Path(folder))) as crowd:
            return await measure(crowd, launches, EACH)


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report(options.json_only)
    launches = QUICK_LAUNCHES if options.quick else LAUNCHES
    report.progress(f"{launches} launches, each sent {EACH} times …")
    answer = asyncio.run(_alone(launches))
    rows = [[name, str(value)] for name, value in answer.items()]
    report.publish("Launches sent again and again", ["", ""], rows, {"benchmark": "launches", **answer})


if __name__ == "__main__":
    main()
