"""The API over a real Temporal, and runs whose engines follow a script."""

import asyncio
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import uvicorn
from temporalio.testing import WorkflowEnvironment

from api.app import create_app
from api.settings import ApiSettings
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.access import Role
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunPhase
from ratchet.spec.views import RunView
from ratchet.store import Tokens
from workers.testing.scripted import ScriptedStack, scripted_stack

SPEC: dict[str, Any] = {
    "name": "scripted",
    "policy": {"model": "tiny", "train_micro_batch_size": 2},
    "generation": {"max_new_tokens": 4},
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2},
    "environment": {"name": "arithmetic"},
    "evaluation": {"num_problems": 0},
}
RUNS_ON_RECORD = {"done": RunPhase.COMPLETED, "on": RunPhase.RUNNING, "broken": RunPhase.FAILED}


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


@pytest.fixture
def live(home: Home, on_record: Any) -> Iterator[tuple[str, str]]:
    """Address and token of an API with runs in it; Temporal is away."""
    home.root.mkdir(exist_ok=True)
    stack = StackState(supervisor_pid=1, temporal_address="127.0.0.1:1", namespace="ratchet")
    home.state_file.write_text(stack.model_dump_json())
    for run, phase in RUNS_ON_RECORD.items():
        on_record.run(run, phase, steps=3)
        on_record.incident(run, 1)
    version = WeightVersion(incarnation=1, step=0, digest="d" * 32)
    sample = Sample(
        tokens=np.array([55, 10], np.int32),
        logprobs=np.array([-0.5, -0.25], np.float32),
        mask=np.ones(2, np.uint8),
        finish_reason="stop",
        text="7\n",
        reward=1.0,
        rewards={"exact": 1.0},
        correct=True,
        seed=7,
    )
    writer = JournalWriter(home.run_folder("done") / "journal", "generator-0")
    writer.adopt(1)
    prompt = np.array([1, 2], np.int32)
    writer.append([PromptGroup(key, 1, f"p{key}", prompt, version, version, (sample,)) for key in range(6)])
    writer.close()
    _, token = Tokens(on_record.store).create("test", Role.ADMIN, by="a test", at=0.0)
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(home, ApiSettings(wide=True, allowed_roots=()))
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", token
    server.should_exit = True
    thread.join(10)
