"""A store with runs in it, for what reads them: the API and its client."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ratchet.data_plane.backends import CAPABILITIES
from ratchet.data_plane.blocking import BlockingDataPlane, CallersLoop
from ratchet.data_plane.calls import Desk, OwnersMemory
from ratchet.data_plane.ledger import Ledger
from ratchet.data_plane.memory import MemoryStorage
from ratchet.data_plane.owner import Owner
from ratchet.data_plane.plane import StoragePlane
from ratchet.rollouts.partition import PARTITION, TASK
from ratchet.spec import names
from ratchet.spec.control import (
    CheckpointEntry,
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
    CheckpointReceipt,
    EvaluateReceipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    TrainReceipt,
)
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec
from ratchet.spec.state import RunPhase
from ratchet.store import Store

SPEC = RunSpec(
    name="tiny-addition",
    policy=PolicySpec(model="tiny"),
    generation=GenerationSpec(max_new_tokens=5),
    grpo=GrpoSpec(num_prompts_per_step=4, num_generations_per_prompt=8, max_num_steps=4),
    environment=EnvironmentSpec(name="arithmetic"),
)


@pytest.fixture
def make_plane() -> Iterator[Callable[[], BlockingDataPlane]]:
    """A data plane in this process, with the partition that training reads."""
    loops: list[CallersLoop] = []

    def make() -> BlockingDataPlane:
        ledger = Ledger(write_within=60.0)
        ledger.register_partition(PARTITION, [TASK], capacity=0)
        owner = Owner(ledger, MemoryStorage())
        loops.append(CallersLoop())
        plane = StoragePlane(Desk(owner.call), OwnersMemory(owner.call), CAPABILITIES["memory"], "test")
        return BlockingDataPlane(plane, loops[-1])

    yield make
    for loop in loops:
        loop.close()


BEGAN = 1_700_000_000.0
STEP_S = 2.0


class RunsOnRecord:
    """Writes runs as their workflows would. Step s earns a reward of 0.4 + 0.1 s and takes 2 s."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(
        self, run: str, phase: RunPhase, *, steps: int = 1, fault: Fault | None = None, began: float = BEGAN
    ) -> None:
        request = RegisterRun(run=run, spec=SPEC, workflow_run_id=f"w-{run}", incarnation=1)
        self.store.register_run(request, at=began, code={})
        entries: list[StepEntry | CheckpointEntry | EvaluationEntry] = [_evaluation(0, 0.40)]
        entries += [_step(step, 1, began) for step in range(1, steps + 1)]
        if phase is RunPhase.COMPLETED:
            entries += [_checkpoint(run, steps), _evaluation(steps, 0.75)]
        ended = StateEntry(phase=phase, step=steps, fault=fault)
        at = began + STEP_S * steps + 1.0
        self.store.record(RecordRequest(run=run, incarnation=1, at=at, entries=(*entries, ended)))

    def restored(self, run: str, *, from_step: int, steps: int) -> None:
        """Incarnation 2 grows from a checkpoint at `from_step` and trains `steps` more."""
        restore = IncarnationEntry(
            receipt=RestoreReceipt(
                op="restore",
                version=_version(from_step, 2),
                checkpoint=f"checkpoints/1-{from_step}",
                parent=_version(from_step, 1),
                num_parameters=1,
                model_digest="base",
            )
        )
        again = [_step(step, 2, BEGAN + 100.0) for step in range(from_step + 1, from_step + steps + 1)]
        running = StateEntry(phase=RunPhase.RUNNING, step=from_step + steps)
        entries = (restore, *again, running)
        self.store.record(RecordRequest(run=run, incarnation=2, at=BEGAN + 200.0, entries=entries))

    def recovering(self, run: str, *, at_step: int) -> None:
        """Incarnation 2 opens, and has restored nothing yet."""
        entry = StateEntry(phase=RunPhase.RECOVERING, step=at_step)
        self.store.record(RecordRequest(run=run, incarnation=2, at=BEGAN + 150.0, entries=(entry,)))

    def incident(self, run: str, number: int) -> None:
        """A generator is lost and replaced; the n-th costs n + 0.5 s."""
        incident = Incident(
            lost="generator",
            cause="its process is gone",
            detected_at=BEGAN + number,
            done="replaced while the run went on",
            seconds=number + 0.5,
        )
        entry = EventEntry(
            key=f"incident/{number}",
            topic=names.TOPIC_INCIDENT,
            message=str(incident),
            data=incident.model_dump(mode="json"),
        )
        self.store.record(RecordRequest(run=run, incarnation=1, at=BEGAN + number, entries=(entry,)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def on_record(home: Home) -> Iterator[RunsOnRecord]:
    store = Store(home.store_url)
    store.migrate()
    yield RunsOnRecord(store)
    store.close()


def _version(step: int, incarnation: int = 1) -> WeightVersion:
    return WeightVersion(incarnation=incarnation, step=step, digest=f"{incarnation}{step}" * 8)


def _step(step: int, incarnation: int, began: float) -> StepEntry:
    start, end = 4 * (step - 1), 4 * step
    reward = 0.4 + 0.1 * step
    return StepEntry(
        step=step,
        started_at=began + STEP_S * (step - 1),
        finished_at=began + STEP_S * step,
        rollout=RolloutReceipt(
            op="rollout",
            cursor_start=start,
            cursor_end=end,
            num_groups=4,
            num_samples=32,
            replayed_groups=0,
            num_tokens=120,
            reward_mean=reward,
            reward_std=0.3,
            accuracy=reward,
            length_mean=3.75,
            truncated_fraction=0.0,
            samples_generated=32 * step,
            version=_version(step - 1, incarnation),
            engine_s=0.5,
        ),
        train=TrainReceipt(
            op="train",
            version=_version(step, incarnation),
            cursor_start=start,
            cursor_end=end,
            num_groups=4,
            zero_advantage_groups=1,
            num_tokens=120,
            optimizer_steps=step,
            metrics={"loss": 0.01, "grad_norm": 0.25, "logprob_error": 2e-6, "entropy": float("nan")},
            engine_s=0.4,
        ),
        refit=RefitReceipt(
            op="refit",
            version=_version(step, incarnation),
            mover="ipc",
            num_tensors=3,
            num_bytes=64,
            wire_digest="w",
            engine_s=0.1,
        ),
    )


def _evaluation(step: int, accuracy: float) -> EvaluationEntry:
    receipt = EvaluateReceipt(
        op="evaluate",
        version=_version(step),
        num_problems=256,
        accuracy=accuracy,
        reward_mean=accuracy,
        length_mean=3.0,
    )
    return EvaluationEntry(step=step, receipt=receipt)


def _checkpoint(run: str, step: int) -> CheckpointEntry:
    receipt = CheckpointReceipt(
        op="commit",
        version=_version(step),
        path=f"/artifacts/runs/{run}/checkpoints/1-{step}",
        digest="ab" * 16,
        manifest_digest="cd" * 16,
        num_bytes=7_300_000,
        num_files=4,
        write_s=0.1,
    )
    return CheckpointEntry(step=step, cursor=4 * step, receipt=receipt)
