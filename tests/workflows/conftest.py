"""What the tests of the workflow share: a run's control side in one process, over scripted engines."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from ratchet.spec import names
from ratchet.spec.admission import Limit
from ratchet.spec.ids import OpKind
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase, RunStatus
from workers.testing.scripted import ScriptedStack, scripted_stack

T = TypeVar("T")

CACHED = int(os.environ.get("RATCHET_TEST_CACHED_WORKFLOWS", "1000"))
"""0 (`make test-uncached`): every workflow task replays its run from the beginning."""


class Bench(ScriptedStack):
    """A scripted stack, with the questions that tests ask."""

    @staticmethod
    def spec(steps: int = 3, **sections: dict[str, object]) -> RunSpec:
        return RunSpec.model_validate(
            {
                "name": "scripted",
                "policy": {"model": "none", "train_micro_batch_size": 2},
                "generation": {"max_new_tokens": 4},
                "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": steps},
                "environment": {"name": "arithmetic"},
                "evaluation": {"num_problems": 0},
                **sections,
            }
        )

    async def begun(self, kind: OpKind, step: int) -> None:
        await asyncio.wait_for(self.script.began[kind, step].wait(), 30)

    async def status(self, run: str) -> RunStatus:
        return await self.client.get_workflow_handle(run).query(names.QUERY_STATUS, result_type=RunStatus)

    async def in_phase(self, run: str, phase: RunPhase) -> None:
        async with asyncio.timeout(60):
            while (await self.status(run)).phase is not phase:
                await asyncio.sleep(0.01)

    async def on_record(self, question: Callable[[], T]) -> T:
        """The answer of the store, once it has one: a run goes on while its records are being written."""
        async with asyncio.timeout(30):
            while not (answer := question()):
                await asyncio.sleep(0.01)
        return answer

    async def update(self, run: str, name: str, *args: object, id: str | None = None) -> RunStatus:
        handle = self.client.get_workflow_handle(run)
        return await handle.execute_update(name, args=list(args), id=id, result_type=RunStatus)

    def trained(self, run: str) -> list[tuple[int, int]]:
        """(incarnation, step) of every train step that had its effect, in order."""
        ops = [entry.split("/") for entry in self.script.carried_out]
        return [(int(op[1]), int(op[2])) for op in ops if op[0] == run and op[3] == "train_step"]

    def topics(self, run: str) -> list[str]:
        return [event.topic for event in self.store.events(run)]


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest_asyncio.fixture(loop_scope="session")
async def stack(
    request: pytest.FixtureRequest, ratchet_temporal: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[Bench]:
    """Parametrized indirectly: with so many sessions at a time."""
    limit, client = Limit(max_sessions=getattr(request, "param", None)), ratchet_temporal.client
    async with scripted_stack(client, tmp_path, cached=CACHED, kind=Bench, limit=limit) as stack:
        yield stack


@pytest.fixture
def spec() -> Callable[..., RunSpec]:
    return Bench.spec


@pytest.fixture
def bench() -> type[Bench]:
    return Bench
