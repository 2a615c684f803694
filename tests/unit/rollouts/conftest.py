"""A worker on the real environment, journal and data plane, with a model whose answers are known."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from ratchet.data_plane.blocking import BlockingDataPlane
from ratchet.environments.protocol import Environment
from ratchet.environments.registry import create_environment
from ratchet.generation.protocol import Completion, SamplingParams
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.columns import from_columns
from ratchet.rollouts.group import PromptGroup, Tokens
from ratchet.rollouts.partition import PARTITION, TrainPartition
from ratchet.rollouts.worker import RolloutWorker
from ratchet.spec.faults import Cancelled
from ratchet.spec.run_spec import RunSpec


class Calculator:
    """Reads `a+b=` byte by byte. Greedy it is right; sampling, the seed decides whether it is off by one."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        """Rows of every call."""
        self.params: list[SamplingParams] = []

    def open(self, model_folder: Path) -> None: ...

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def generate(
        self,
        prompts: Sequence[Tokens],
        seeds: Sequence[int],
        params: SamplingParams,
        should_stop: Callable[[], bool],
    ) -> list[Completion]:
        if should_stop():
            raise Cancelled("stopped between tokens")
        self.batches.append(len(prompts))
        self.params.append(params)
        return [self._answer(prompt, seed, params) for prompt, seed in zip(prompts, seeds, strict=True)]

    def wire_dtypes(self) -> dict[str, str]:
        return {}

    def load_weights(self, tensors: Mapping[str, object]) -> None: ...

    def _answer(self, prompt: Tokens, seed: int, params: SamplingParams) -> Completion:
        a, b = bytes(prompt.astype(np.uint8)).decode().rstrip("=").split("+")
        text = str(int(a) + int(b) + (seed % 2 if params.temperature else 0))
        tokens = self.encode(text)[: params.max_new_tokens]
        return Completion(
            tokens=tokens,
            logprobs=np.full(len(tokens), -0.25, dtype=np.float32),
            finish_reason="length" if len(text) > len(tokens) else "stop",
            text=text[: len(tokens)],
        )


@dataclasses.dataclass
class Bench:
    """A worker and everything it works with."""

    worker: RolloutWorker
    generator: Calculator
    environment: Environment
    plane: BlockingDataPlane
    index: JournalIndex

    @property
    def handed_over(self) -> list[int]:
        return self.plane.list_groups(PARTITION)

    def groups(self, keys: Sequence[int]) -> list[PromptGroup]:
        """As they are in the data plane."""
        return [from_columns(group) for group in self.plane.get(PARTITION, keys)]

    @property
    def journaled(self) -> list[int]:
        self.index.refresh()
        return self.index.keys()


@pytest.fixture
def spec() -> RunSpec:
    options = {"max_operand": 60, "template": "{a}{op}{b}=", "shots": 0}
    return RunSpec.model_validate(
        {
            "name": "calculator",
            "seed": 11,
            "policy": {"model": "tiny", "train_micro_batch_size": 4},
            "generation": {"max_new_tokens": 4, "deterministic": True, "top_k": 5, "stop_strings": ["\n"]},
            "grpo": {"num_prompts_per_step": 3, "num_generations_per_prompt": 4, "max_num_steps": 2},
            "environment": {"name": "arithmetic", "options": options},
        }
    )


@pytest.fixture
def start(
    tmp_path: Path, spec: RunSpec, make_plane: Callable[[], BlockingDataPlane]
) -> Iterator[Callable[..., Bench]]:
    """Start a worker, as after a crash: all is new but the journal's folder."""
    writers: list[JournalWriter] = []

    def start_(
        spec: RunSpec = spec, environment: Environment | None = None, folder: str = "journal"
    ) -> Bench:
        environment = environment or create_environment(spec.environment, spec.seed)
        generator, plane = Calculator(), make_plane()
        writers.append(JournalWriter(tmp_path / folder, "generator-0"))
        index = JournalIndex(tmp_path / folder)
        worker = RolloutWorker(spec, generator, environment, writers[-1], index, TrainPartition(plane, "t"))
        return Bench(worker, generator, environment, plane, JournalIndex(tmp_path / folder))

    yield start_
    for writer in writers:
        writer.close()
