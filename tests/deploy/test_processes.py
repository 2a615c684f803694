"""The commands of docker-compose.yml, run as processes: a real Postgres, and a Temporal server that somebody
else has started. The engines of the run follow a script; everything else is what the containers run."""

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from ratchet.spec import deadlines, names
from ratchet.spec.home import Home
from ratchet.spec.ids import CLUSTER_QUEUE
from ratchet.spec.views import RunView
from ratchet.store import Store
from tests.deploy.compose import Here, services
from workers.supervisor.temporal_server import ensure_namespace
from workers.temporal import connect
from workers.testing.scripted import Script, ScriptedCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

STEPS = 3
SPEC: dict[str, Any] = {
    "name": "composed",
    "policy": {"model": "tiny", "train_micro_batch_size": 2},
    "generation": {"max_new_tokens": 4},
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": STEPS},
    "environment": {"name": "arithmetic"},
    "evaluation": {"num_problems": 0},
}


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(ratchet_temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Script]:
    """What `sessions` and the Ray cluster are for: sessions whose engines follow a script."""
    address = ratchet_temporal.client.service_client.config.target_host
    client = await connect(address, namespace=names.NAMESPACE)
    await ensure_namespace(client, own_server=False)
    script = Script()
    sessions = ScriptedCluster(client, script, Home(tmp_path / "home"))
    async with Worker(client, task_queue=CLUSTER_QUEUE, activities=sessions.all()):
        yield script
        await sessions.stop_all()


def scraped(here: Here) -> dict[str, str]:
    """Where Prometheus would look, by process. What listens for everybody is announced by the host's name."""
    found = {}
    for file in (here.logs / "home" / "prometheus").glob("*.json"):
        (target,) = json.loads(file.read_text())
        port = target["targets"][0].rpartition(":")[2]
        found[target["labels"]["process"]] = f"http://127.0.0.1:{port}/metrics"
    return found


async def test_a_run_goes_through_what_the_containers_run(here: Here, cluster: Script, api_url: str) -> None:
    (here.logs / "home").mkdir()
    # Nobody holds a token: the API does not listen beyond loopback.
    await asyncio.to_thread(here.run, "migrate")
    with here.running("api") as refused:
        assert await asyncio.to_thread(refused["api"].wait, 60) == 2
    assert "nobody holds a token yet" in (here.logs / "api.log").read_text()
    token = (await asyncio.to_thread(here.run, "token")).strip()

    with here.running("api", "control-worker", "sinks") as processes:
        await here.until_healthy("api", "control-worker", "sinks")
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": uuid.uuid4().hex}
        async with httpx.AsyncClient(base_url=api_url, headers=headers, timeout=deadlines.HTTP) as api:
            assert (await api.get("/readyz")).json()["parts"] == {"store": "ok", "temporal": "ok"}
            launched = await api.post("/v1/runs", json={"spec": SPEC})
            assert launched.status_code == 201, launched.text
            run = RunView.model_validate_json(launched.content)
            ui = services()["api"]["environment"]["RATCHET_TEMPORAL_UI"]
            assert run.links.temporal == f"{ui}/namespaces/ratchet/workflows/{run.id}"
            async with asyncio.timeout(90):
                while not run.phase.final:
                    await asyncio.sleep(0.2)
                    run = RunView.model_validate_json((await api.get(f"/v1/runs/{run.id}")).content)
            assert (run.phase, run.step, run.fault) == ("completed", STEPS, None)
            async with httpx.AsyncClient() as prometheus:
                metrics = {name: (await prometheus.get(url)).text for name, url in scraped(here).items()}
            assert {"api", "control-worker", "sinks"} <= set(metrics)
            assert 'ratchet_runs{phase="completed"} 1' in metrics["api"]
            assert "temporal_workflow_completed" in metrics["control-worker"]
            async with httpx.AsyncClient(base_url=api_url) as nobody:
                assert (await nobody.get("/v1/runs")).status_code == 401
        for service, process in processes.items():
            process.terminate()
            assert await asyncio.to_thread(process.wait, deadlines.STOP_GRACE) in (0, -signal.SIGTERM), (
                service
            )
    store = Store(here.environment("api")["RATCHET_STORE"])
    assert [step.step for step in store.steps(run.id)] == [*range(1, STEPS + 1)]
    store.close()
