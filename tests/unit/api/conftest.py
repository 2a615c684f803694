"""The API over a real Temporal, and runs whose engines follow a script."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from api.app import create_app
from ratchet.spec.home import Home
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.stack import StackState
from ratchet.spec.views import RunView
from workers.testing.scripted import ScriptedStack, scripted_stack

SPEC: dict[str, Any] = {
    "name": "scripted",
    "policy": {"model": "tiny", "train_micro_batch_size": 2},
    "generation": {"max_new_tokens": 4},
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2},
    "environment": {"name": "arithmetic"},
    "evaluation": {"num_problems": 0},
}


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def scripted_spec() -> Callable[..., RunSpec]:
    """A spec of so many steps, with other sections changed."""

    def make(steps: int = 2, **sections: dict[str, object]) -> RunSpec:
        return RunSpec.model_validate({**SPEC, "grpo": {**SPEC["grpo"], "max_num_steps": steps}, **sections})

    return make


@pytest_asyncio.fixture(loop_scope="session")
async def stack(ratchet_temporal: WorkflowEnvironment, home: Home) -> AsyncIterator[ScriptedStack]:
    client = ratchet_temporal.client
    home.root.mkdir()
    state = StackState(
        supervisor_pid=1,
        temporal_address=client.service_client.config.target_host,
        namespace=client.namespace,
    )
    home.state_file.write_text(state.model_dump_json())
    async with scripted_stack(client, home.root) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="session")
async def api(home: Home, stack: ScriptedStack) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(home)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


@pytest.fixture
def launch(api: httpx.AsyncClient) -> Callable[[str, RunSpec], Awaitable[httpx.Response]]:
    async def launched(run: str, spec: RunSpec) -> httpx.Response:
        return await api.post("/v1/runs", json={"run_id": run, "spec": spec.model_dump(mode="json")})

    return launched


@pytest.fixture
def ended(api: httpx.AsyncClient) -> Callable[[str], Awaitable[RunView]]:
    """The run, once it has ended."""

    async def view(run: str) -> RunView:
        async with asyncio.timeout(60):
            while True:
                seen = RunView.model_validate_json((await api.get(f"/v1/runs/{run}")).content)
                if seen.phase.final:
                    return seen
                await asyncio.sleep(0.05)

    return view
