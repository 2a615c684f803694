"""Runs to look at: a store and a journal as they are after a few days of work, with losses in them.

Numbers are drawn from one seed and follow no real training. For pictures of the dashboard.
"""

import math
import random
import time
from collections.abc import Iterator

import numpy as np

from ratchet.environments.registry import create_environment
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
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
from ratchet.spec.faults import Fault, FaultKind, Incident
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
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase
from ratchet.store import Store

MAIN, FORK = "arithmetic-7c41e0", "arithmetic-lr-5d20b9"
PROMPTS, SAMPLES = 12, 8
EVERY = 20
"""Steps between checkpoints, and between evaluations."""
LOSS_AT, BACK_TO = 67, 60
"""The main run loses its trainer in step 67 and goes back to its checkpoint of step 60."""
CODE = {"ratchet": "0.1.0", "torch": "2.13.0", "transformers": "5.19.0", "revision": "a3f09c51d2"}
INPUTS: dict[str, object] = {"environment": "sha256:4be1c07a93", "dataset": "sha256:90ff3d1c6e"}


def spec(name: str = "arithmetic", steps: int = 120, lr: float = 5e-6) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": name,
            "seed": 11,
            "policy": {"model": "smollm2-135m", "optimizer": {"lr": lr}},
            "generation": {"max_new_tokens": 24},
            "grpo": {
                "num_prompts_per_step": PROMPTS,
                "num_generations_per_prompt": SAMPLES,
                "max_num_steps": steps,
            },
            "environment": {"name": "arithmetic", "options": {"operators": ["+", "-"]}},
            "evaluation": {"num_problems": 256, "every": EVERY},
            "checkpointing": {"every": EVERY},
        }
    )


class Gallery:
    """Writes runs into the store of a state folder."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._store = Store(home.store_url)
        self._store.migrate()
        self._chance = random.Random(3)
        self._now = time.time()

    def fill(self) -> None:
        day = 86400.0
        self._whole("tiny-addition-91be02", spec("tiny-addition", 40), 9 * day, RunPhase.COMPLETED, 40)
        self._whole("arithmetic-03aa7f", spec(steps=60), 6 * day, RunPhase.STOPPED, 34)
        fault = Fault(
            kind=FaultKind.SPEC,
            message="environment.options.path: /data/math-train.jsonl does not exist: name a file below "
            "an allowed root",
            role="generator",
        )
        self._whole("math-cot-b81d44", spec("math-cot", 500), 2 * day, RunPhase.FAILED, 0, fault)
        self._whole("arithmetic-wide-2f6c11", spec("arithmetic-wide", 80), 1.2 * day, RunPhase.COMPLETED, 80)
        self._main()
        self._fork()
        self._whole("tiny-addition-e07d35", spec("tiny-addition", 40), 700.0, RunPhase.PAUSED, 18)
        silent = Fault(
            kind=FaultKind.UNAVAILABLE, message="generator-0 has said nothing for 15m 02s", role="generator"
        )
        self._whole("math-cot-64f7a0", spec("math-cot", 500), 5400.0, RunPhase.STALLED, 41, silent)
        self._journal(MAIN, spec(), range(90, 96))
        self._store.close()

    def _main(self) -> None:
        began = self._now - 3.1 * 3600
        self._register(MAIN, spec(), 1, began)
        self._restore(MAIN, 1, 0, None, began + 38)
        first: list[AnyEntry] = list(self._steps(MAIN, 1, range(1, LOSS_AT), began + 40))
        lost = began + 40 + 90 * (LOSS_AT - 1) + 30
        generator = Incident(
            lost="generator",
            cause="actor generator-0 is dead (its process got SIGKILL)",
            detected_at=began + 40 + 90 * 27 + 20,
            done="replaced while the run went on",
            seconds=5.2,
        )
        trainer = Incident(
            lost="trainer",
            cause="CUDA error: an illegal memory access in rank 0, inside the update of step 67",
            detected_at=lost,
            done=f"restored step {BACK_TO} as incarnation 2",
            seconds=21.4,
        )
        self._record(MAIN, 1, lost, [*first, _told(generator, "generator/1")])
        self._restore(MAIN, 2, BACK_TO, f"{MAIN}/checkpoints/1-{BACK_TO}", lost + 21)
        running: list[AnyEntry] = [
            _told(trainer, "recovery/2"),
            *self._steps(MAIN, 2, range(BACK_TO + 1, 97), lost + 22, replayed=LOSS_AT),
            StateEntry(phase=RunPhase.RUNNING, step=96),
        ]
        self._record(MAIN, 2, self._now - 20, running)

    def _fork(self) -> None:
        began = self._now - 1.4 * 3600
        self._register(FORK, spec(lr=1e-5), 1, began)
        self._restore(FORK, 1, 40, f"{MAIN}/checkpoints/1-40", began + 29)
        entries: list[AnyEntry] = [
            *self._steps(FORK, 1, range(41, 92), began + 30, ahead=0.05),
            StateEntry(phase=RunPhase.RUNNING, step=91),
        ]
        self._record(FORK, 1, self._now - 35, entries)

    def _whole(
        self, run: str, of: RunSpec, ago: float, phase: RunPhase, steps: int, fault: Fault | None = None
    ) -> None:
        began = self._now - ago
        self._register(run, of, 1, began)
        if steps:
            self._restore(run, 1, 0, None, began + 11)
        entries: list[AnyEntry] = list(self._steps(run, 1, range(1, steps + 1), began + 12, pace=15.0))
        if phase is RunPhase.STALLED and fault:
            silent = Incident(
                lost="generator", cause=fault.message, detected_at=self._now - 300, done="the run waits"
            )
            entries.append(_told(silent, "stalled/1"))
        entries.append(StateEntry(phase=phase, step=steps, fault=fault))
        self._record(run, 1, began + 14 + 15.0 * steps, entries)

    # --- rows

    def _register(self, run: str, of: RunSpec, incarnation: int, at: float) -> None:
        request = RegisterRun(run=run, spec=of, workflow_run_id=f"w-{run}", incarnation=incarnation)
        self._store.register_run(request, at=at, code=CODE, inputs=dict(INPUTS))  # type: ignore[arg-type]

    def _record(self, run: str, incarnation: int, at: float, entries: list[AnyEntry]) -> None:
        self._store.record(RecordRequest(run=run, incarnation=incarnation, at=at, entries=tuple(entries)))

    def _restore(self, run: str, incarnation: int, step: int, checkpoint: str | None, at: float) -> None:
        key = f"{self._home.artifacts}/runs/{checkpoint}" if checkpoint else None
        parent = version(step, 1, checkpoint.partition("/")[0]) if checkpoint else None
        digest = parent.digest if parent else "base"
        receipt = RestoreReceipt(
            op="",
            version=WeightVersion(incarnation=incarnation, step=step, digest=digest),
            checkpoint=key,
            parent=parent,
            num_parameters=134_515_008,
            model_digest="5b1f0d66c2e84a17",
        )
        self._record(run, incarnation, at, [IncarnationEntry(receipt=receipt)])

    def _steps(
        self,
        run: str,
        incarnation: int,
        steps: range,
        began: float,
        *,
        pace: float = 90.0,
        ahead: float = 0.0,
        replayed: int = 0,
    ) -> Iterator[AnyEntry]:
        """`replayed`: up to which step the journal has the groups already."""
        at = began
        for step in steps:
            took = pace * (0.3 if step < replayed else 1.0) * self._chance.uniform(0.9, 1.1)
            yield self._step(run, incarnation, step, at, took, ahead, replayed=step < replayed)
            at += took
            if step % EVERY == 0:
                yield self._saved(run, incarnation, step)
                yield self._evaluated(run, incarnation, step, ahead)

    def _step(
        self, run: str, incarnation: int, step: int, at: float, took: float, ahead: float, *, replayed: bool
    ) -> StepEntry:
        chance, start, end = self._chance, PROMPTS * (step - 1), PROMPTS * step
        reward = _learned(step, ahead) + chance.gauss(0, 0.045)
        length = 6.5 + 3.0 * math.exp(-step / 25) + chance.gauss(0, 0.25)
        tokens = int(PROMPTS * SAMPLES * length)
        made = version(step, incarnation, run)
        rollout_s = 0.02 * took if replayed else 0.55 * took
        rollout = RolloutReceipt(
            op="", cursor_start=start, cursor_end=end, num_groups=PROMPTS, num_samples=PROMPTS * SAMPLES,
            replayed_groups=PROMPTS if replayed else 0, num_tokens=tokens, reward_mean=reward, reward_std=0.4,
            accuracy=max(0.0, reward - 0.02), length_mean=length,
            truncated_fraction=max(0.0, 0.06 - step / 2000), samples_generated=PROMPTS * SAMPLES * step,
            version=version(step - 1, incarnation, run), engine_s=rollout_s,
        )  # fmt: skip
        metrics = {
            "loss": 0.02 * math.exp(-step / 60) + chance.gauss(0, 0.004),
            "grad_norm": 0.9 * math.exp(-step / 90) + abs(chance.gauss(0, 0.08)),
            "learning_rate": 5e-6 * min(1.0, step / 10),
            "logprob_error": 1.1e-3 + abs(chance.gauss(0, 1.6e-4)),
            "kl": 0.018 * (1 - math.exp(-step / 50)) + abs(chance.gauss(0, 0.0008)),
            "entropy": 0.9 * math.exp(-step / 70) + 0.25 + chance.gauss(0, 0.02),
            "clip_fraction": abs(chance.gauss(0.02, 0.006)),
            "ratio_mean": 1 + chance.gauss(0, 0.002),
        }
        train = TrainReceipt(
            op="", version=made, cursor_start=start, cursor_end=end, num_groups=PROMPTS,
            zero_advantage_groups=chance.randrange(0, 5), num_tokens=tokens, optimizer_steps=step,
            metrics=metrics, engine_s=(0.8 if replayed else 0.33) * took,
        )  # fmt: skip
        refit = RefitReceipt(
            op="", version=made, mover="ipc", num_tensors=272, num_bytes=538_060_032, wire_digest="w",
            engine_s=0.04 * took,
        )  # fmt: skip
        return StepEntry(
            step=step, started_at=at, finished_at=at + took, rollout=rollout, train=train, refit=refit
        )

    def _saved(self, run: str, incarnation: int, step: int) -> CheckpointEntry:
        made = version(step, incarnation, run)
        path = f"{self._home.artifacts}/runs/{run}/checkpoints/{incarnation}-{step}"
        receipt = CheckpointReceipt(
            op="", version=made, path=path, digest=made.digest * 2, manifest_digest=made.digest * 2,
            num_bytes=1_614_801_920, num_files=6, write_s=1.9,
        )  # fmt: skip
        return CheckpointEntry(step=step, cursor=PROMPTS * step, receipt=receipt)

    def _evaluated(self, run: str, incarnation: int, step: int, ahead: float) -> EvaluationEntry:
        accuracy = round(_learned(step, ahead) * 256 - 6) / 256
        receipt = EvaluateReceipt(
            op="", version=version(step, incarnation, run), num_problems=256, accuracy=accuracy,
            reward_mean=accuracy, length_mean=6.9,
        )  # fmt: skip
        return EvaluationEntry(step=step, receipt=receipt)

    # --- the journal

    def _journal(self, run: str, of: RunSpec, steps: range) -> None:
        environment = create_environment(of.environment, of.seed)
        writer = JournalWriter(self._home.run_folder(run) / "journal", "generator-0")
        writer.adopt(2)
        for step in steps:
            made = version(step - 1, 2, run)
            for key in range(PROMPTS * (step - 1), PROMPTS * step):
                problem = environment.train_problem(key)
                prompt = np.frombuffer(problem.prompt.encode(), np.uint8).astype(np.int32)
                samples = tuple(self._sample(str(problem.answer), number) for number in range(SAMPLES))
                writer.append([PromptGroup(key, 2, problem.id, prompt, made, made, samples)])
        writer.close()

    def _sample(self, answer: str, number: int) -> Sample:
        chance = self._chance
        right = chance.random() < 0.78
        said = answer if right else str(int(answer) + chance.choice((-10, -1, 1, 2, 10)))
        text = f" {said}\n" if chance.random() < 0.8 else f" {said}, since the tens carry over\n"
        tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        logprobs = [-abs(chance.gauss(0, 0.3)) - (3.5 if chance.random() < 0.06 else 0.0) for _ in tokens]
        return Sample(
            tokens=tokens,
            logprobs=np.array(logprobs, np.float32),
            mask=np.ones(len(tokens), np.uint8),
            finish_reason="stop",
            text=text,
            reward=float(right),
            rewards={"exact": float(right)},
            correct=right,
            seed=chance.getrandbits(62),
        )


def version(step: int, incarnation: int, run: str) -> WeightVersion:
    """Made-up weights, the same whenever they are named."""
    digest = random.Random(f"{run}/{incarnation}/{step}").getrandbits(128)
    return WeightVersion(incarnation=incarnation, step=step, digest=f"{digest:032x}")


def _learned(step: int, ahead: float) -> float:
    return 0.28 + (0.5 + ahead) * (1 - math.exp(-step / 38))


def _told(incident: Incident, key: str) -> EventEntry:
    return EventEntry(
        key=key, topic=names.TOPIC_INCIDENT, message=str(incident), data=incident.model_dump(mode="json")
    )
