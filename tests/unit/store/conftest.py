import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue
from sqlalchemy import Engine

from ratchet.spec import names
from ratchet.spec.control import (
    AnyEntry,
    CheckpointEntry,
    EvaluationEntry,
    EventEntry,
    IncarnationEntry,
    RecordRequest,
    RegisterRun,
    StateEntry,
    StepEntry,
)
from ratchet.spec.faults import Fault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.receipts import (
    CheckpointReceipt,
    EvaluateReceipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    TrainReceipt,
)
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec
from ratchet.spec.state import RunPhase
from ratchet.store import Lineage, Store
from ratchet.store.engine import open_engine
from workers.testing.postgres import PostgresServer

BUSY_S = 0.5
"""How long the stores of these tests wait for a lock."""

SPEC = RunSpec(
    name="tiny-addition",
    seed=7,
    policy=PolicySpec(model="tiny"),
    generation=GenerationSpec(max_new_tokens=5),
    grpo=GrpoSpec(num_prompts_per_step=4, num_generations_per_prompt=8, max_num_steps=40),
    environment=EnvironmentSpec(name="arithmetic"),
)


class Told:
    """What a workflow would tell the store. `at` rises with every request, unless it is given."""

    spec = SPEC

    def __init__(self) -> None:
        self._clock = itertools.count(1000)

    def register(self, run: str = "r", incarnation: int = 1, execution: str = "wf-1") -> RegisterRun:
        return RegisterRun(run=run, spec=SPEC, workflow_run_id=execution, incarnation=incarnation)

    def record(
        self, *entries: AnyEntry, run: str = "r", incarnation: int = 1, at: float | None = None
    ) -> RecordRequest:
        at = float(next(self._clock)) if at is None else at
        return RecordRequest(run=run, incarnation=incarnation, at=at, entries=entries)

    def state(self, phase: str, step: int = 0, fault: Fault | None = None) -> StateEntry:
        return StateEntry(phase=RunPhase(phase), step=step, fault=fault)

    def restore(
        self, step: int, incarnation: int = 1, checkpoint: str | None = None, parent: int | None = None
    ) -> IncarnationEntry:
        return IncarnationEntry(
            receipt=RestoreReceipt(
                op="restore",
                version=WeightVersion(incarnation=incarnation, step=step, digest=f"d{step}"),
                checkpoint=checkpoint,
                parent=parent and WeightVersion(incarnation=parent, step=step, digest=f"d{step}"),
                num_parameters=600_000,
                model_digest="base",
            )
        )

    def step(self, step: int, incarnation: int = 1, **metrics: float) -> StepEntry:
        start, end = 4 * (step - 1), 4 * step
        before = WeightVersion(incarnation=incarnation, step=step - 1, digest=f"{incarnation}-{step - 1}")
        after = WeightVersion(incarnation=incarnation, step=step, digest=f"{incarnation}-{step}")
        return StepEntry(
            step=step,
            started_at=100.0 * step,
            finished_at=100.0 * step + 60.125,
            rollout=RolloutReceipt(
                op="rollout",
                submits=2,
                engine_s=1.5,
                cursor_start=start,
                cursor_end=end,
                num_groups=4,
                num_samples=32,
                replayed_groups=1,
                num_tokens=96,
                reward_mean=0.5,
                reward_std=0.25,
                accuracy=0.375,
                length_mean=3.0,
                truncated_fraction=0.0,
                samples_generated=32 * step,
                version=before,
            ),
            train=TrainReceipt(
                op="train",
                engine_s=2.5,
                version=after,
                cursor_start=start,
                cursor_end=end,
                num_groups=4,
                zero_advantage_groups=1,
                num_tokens=96,
                optimizer_steps=step,
                metrics={"loss": 0.1, "grad_norm": 0.7, "learning_rate": 5e-6, "entropy": 1.25, **metrics},
            ),
            refit=RefitReceipt(
                op="refit",
                engine_s=0.5,
                version=after,
                mover="ipc",
                num_tensors=12,
                num_bytes=2_400_000,
                wire_digest="wire",
            ),
        )

    def checkpoint(self, step: int, digest: str = "sha") -> CheckpointEntry:
        return CheckpointEntry(
            step=step,
            cursor=4 * step,
            receipt=CheckpointReceipt(
                op="commit",
                submits=3,
                version=WeightVersion(incarnation=1, step=step, digest=f"1-{step}"),
                path=f"/artifacts/1-{step}",
                digest=digest,
                manifest_digest="manifest",
                num_bytes=5_000_000_000,
                num_files=3,
                write_s=0.25,
            ),
        )

    def saved(self, run: str, incarnation: int, step: int) -> CheckpointEntry:
        """A checkpoint in the folder that it has in the artifacts."""
        entry = self.checkpoint(step)
        version = WeightVersion(incarnation=incarnation, step=step, digest=f"{incarnation}-{step}")
        changed = {"path": self.folder(run, incarnation, step), "version": version}
        return entry.model_copy(update={"receipt": entry.receipt.model_copy(update=changed)})

    def folder(self, run: str, incarnation: int, step: int) -> str:
        return f"/artifacts/runs/{run}/checkpoints/{incarnation}-{step}"

    def evaluation(self, step: int, accuracy: float = 0.5) -> EvaluationEntry:
        return EvaluationEntry(
            step=step,
            receipt=EvaluateReceipt(
                op="evaluate",
                version=WeightVersion(incarnation=1, step=step, digest=f"1-{step}"),
                num_problems=128,
                accuracy=accuracy,
                reward_mean=accuracy,
                length_mean=3.0,
            ),
        )

    def extended(self, key: str, max_num_steps: int) -> EventEntry:
        data: dict[str, JsonValue] = {"max_num_steps": max_num_steps}
        return EventEntry(key=key, topic=names.TOPIC_EXTENDED, message="extended", data=data)

    def event(self, key: str, message: str = "paused by ada") -> EventEntry:
        return EventEntry(key=key, topic="update", message=message, data={"by": ["ada", 1]})


@pytest.fixture
def told() -> Told:
    return Told()


DATABASES = ("sqlite", "postgres")


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind: a file that is not there yet, or one on a server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'home' / 'store.db'}"
        return
    server = request.getfixturevalue("postgres")
    name = server.new_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def migrated(postgres: PostgresServer) -> str:
    """A migrated database on the server, to be copied."""
    name = postgres.new_database()
    Store(postgres.url(name)).migrate()
    return name


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated database of each kind, without runs."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    server = request.getfixturevalue("postgres")
    name = server.new_database(request.getfixturevalue("migrated"))
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A migrated database in a file, without runs."""
    url = f"sqlite:///{tmp_path / 'home' / 'store.db'}"
    Store(url).migrate()
    return url


@pytest.fixture
def raw(url: str) -> Iterator[Engine]:
    """The same database, past the store."""
    engine = open_engine(url, busy_s=1.0)
    yield engine
    engine.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A migrated store, without runs."""
    store = Store(url, busy_s=BUSY_S)
    yield store
    store.close()


@pytest.fixture
def run(store: Store, told: Told) -> str:
    """A registered run."""
    store.register_run(told.register("r"), at=10.5, code={"ratchet": "0.1.0"})
    return "r"


@pytest.fixture
def family(store: Store, told: Told) -> Lineage:
    """Run `a` trains 1-6, is restored at 4, trains 5-8; `b` is forked from its step 6, is restored at 7."""
    inputs: dict[str, JsonValue] = {"environment": "arithmetic", "environment_digest": "e"}
    store.register_run(told.register("a"), at=1.0, code={"torch": "2"}, inputs=inputs)
    steps = [told.step(n) for n in range(1, 7)]
    saved = [told.saved("a", 1, n) for n in (2, 4)]
    seen = [told.evaluation(n) for n in (0, 6)]
    store.record(told.record(told.restore(0), *steps, *saved, *seen, run="a"))
    grown = told.restore(4, 2, told.folder("a", 1, 4), parent=1)
    steps = [told.step(n, 2) for n in range(5, 9)]
    saved = [told.saved("a", 2, n) for n in (6, 8)]
    store.record(told.record(grown, *steps, *saved, run="a", incarnation=2))
    store.register_run(told.register("b", execution="wf-b"), at=2.0, code={"torch": "3"})
    grown = told.restore(6, 1, told.folder("a", 2, 6), parent=2)
    store.record(told.record(grown, told.step(7), told.step(8), told.saved("b", 1, 7), run="b"))
    grown = told.restore(7, 2, told.folder("b", 1, 7), parent=1)
    store.record(told.record(grown, told.step(8, 2), told.saved("b", 2, 8), run="b", incarnation=2))
    return Lineage(store)
