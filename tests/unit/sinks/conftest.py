"""Runs on record that have sinks, and a follower over them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ratchet.sinks.follower import Follower
from ratchet.spec.control import (
    AnyEntry,
    EvaluationEntry,
    EventEntry,
    IncarnationEntry,
    RecordRequest,
    RegisterRun,
    StateEntry,
    StepEntry,
)
from ratchet.spec.faults import Fault, Incident
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.receipts import (
    EvaluateReceipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    TrainReceipt,
)
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase
from ratchet.store import SinkPositions, Store

SPEC: dict[str, Any] = {
    "name": "tiny-addition",
    "policy": {"model": "tiny"},
    "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 40},
    "environment": {"name": "arithmetic"},
}
BEGAN = 1_700_000_000.0


class Runs:
    """Writes what workflows would. The loss of a step is `incarnation + step / 100`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.positions = SinkPositions(store)

    def register(self, run: str, **sections: object) -> None:
        spec = RunSpec.model_validate({**SPEC, **sections})
        request = RegisterRun(run=run, spec=spec, workflow_run_id=f"w-{run}", incarnation=1)
        self.store.register_run(request, at=BEGAN, code={})

    def train(self, run: str, first: int, last: int, incarnation: int = 1) -> None:
        self._record(run, incarnation, *(_step(step, incarnation) for step in range(first, last + 1)))

    def evaluate(self, run: str, step: int, accuracy: float) -> None:
        receipt = EvaluateReceipt(
            op="e",
            version=_version(step, 1),
            num_problems=8,
            accuracy=accuracy,
            reward_mean=0.0,
            length_mean=3.0,
        )
        self._record(run, 1, EvaluationEntry(step=step, receipt=receipt))

    def restore(self, run: str, incarnation: int, step: int) -> None:
        receipt = RestoreReceipt(
            op="r", version=_version(step, incarnation), checkpoint=None, num_parameters=1, model_digest="b"
        )
        self._record(run, incarnation, IncarnationEntry(receipt=receipt))

    def incident(self, run: str, key: str, lost: str = "trainer") -> None:
        data = Incident(lost=lost, cause="it was killed", detected_at=BEGAN, done="restored", seconds=4.0)
        details = data.model_dump(mode="json")
        self._record(run, 1, EventEntry(key=key, topic="incident", message=str(data), data=details))

    def end(self, run: str, incarnation: int = 1, fault: Fault | None = None) -> None:
        phase = RunPhase.FAILED if fault else RunPhase.COMPLETED
        self._record(run, incarnation, StateEntry(phase=phase, step=0, fault=fault))

    def _record(self, run: str, incarnation: int, *entries: AnyEntry) -> None:
        at = BEGAN + self.store.newest_notice()
        self.store.record(RecordRequest(run=run, incarnation=incarnation, at=at, entries=entries))


def _version(step: int, incarnation: int) -> WeightVersion:
    return WeightVersion(incarnation=incarnation, step=step, digest=f"{incarnation}-{step}")


def _step(step: int, incarnation: int) -> StepEntry:
    at = BEGAN + 100.0 * incarnation + step
    rollout = RolloutReceipt(
        op="r",
        engine_s=0.5,
        cursor_start=step - 1,
        cursor_end=step,
        num_groups=1,
        num_samples=2,
        replayed_groups=0,
        num_tokens=8,
        reward_mean=0.5,
        reward_std=0.0,
        accuracy=0.5,
        length_mean=4.0,
        truncated_fraction=0.0,
        samples_generated=2 * step,
        version=_version(step - 1, incarnation),
    )
    train = TrainReceipt(
        op="t",
        engine_s=0.25,
        version=_version(step, incarnation),
        cursor_start=step - 1,
        cursor_end=step,
        num_groups=1,
        zero_advantage_groups=0,
        num_tokens=8,
        optimizer_steps=step,
        metrics={"loss": incarnation + step / 100, "entropy": float("nan")},
    )
    refit = RefitReceipt(
        op="f", version=train.version, mover="ipc", num_tensors=1, num_bytes=4, wire_digest="w"
    )
    return StepEntry(step=step, started_at=at, finished_at=at + 1, rollout=rollout, train=train, refit=refit)


@pytest.fixture
def runs(home: Home) -> Iterator[Runs]:
    home.root.mkdir(parents=True, exist_ok=True)
    store = Store(home.store_url)
    store.migrate()
    yield Runs(store)
    store.close()


@pytest.fixture
def following(runs: Runs, home: Home, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A follower at work: `async with following() as follower`."""
    monkeypatch.setattr("ratchet.sinks.follower.LOOK_EVERY", 0.02)

    @asynccontextmanager
    async def at_work() -> AsyncIterator[Follower]:
        follower = Follower(runs.store, home, first_pause=0.02)
        task = asyncio.create_task(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await follower.rest()

    return at_work


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    """Waits until something is so."""

    async def wait(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
