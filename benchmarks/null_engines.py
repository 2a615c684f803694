"""Engines that do nothing, as fast as that can be done: what is left of a step is orchestration."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ratchet.generation.protocol import Completion, SamplingParams
from ratchet.policy.digest import digest_tensors
from ratchet.policy.protocol import LoadResult, StepResult
from ratchet.rollouts.group import PromptGroup, Tokens
from ratchet.spec.faults import SpecError
from ratchet.spec.run_spec import RunSpec

NAME = "weight"


class NullTrainer:
    """A PolicyTrainer of one number, which counts steps."""

    def __init__(self, spec: RunSpec) -> None:
        self._weight = torch.zeros(1)

    def open(self, model_folder: Path) -> LoadResult:
        return LoadResult(num_parameters=1, model_digest=self.digest())

    def adopt(self, spec: RunSpec) -> None:
        pass

    def train(
        self, step: int, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()
    ) -> StepResult:
        self.begin(step)
        self.add(groups, crossed)
        return self.finish()

    def begin(self, step: int) -> None:
        self._groups: list[PromptGroup] = []

    def add(self, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()) -> None:
        self._groups += groups

    def abort(self) -> None:
        pass

    def finish(self) -> StepResult:
        self._weight.add_(1)
        num_tokens = sum(len(sample.tokens) for group in self._groups for sample in group.samples)
        return StepResult({"loss": 0.0, "grad_norm": 0.0}, num_tokens, len(self._groups))

    def digest(self) -> str:
        return digest_tensors({NAME: self._weight})

    def weights(self) -> Mapping[str, object]:
        return {NAME: self._weight}

    def export_hf(self, target: Path, weights: Mapping[str, object]) -> None:
        raise SpecError("checkpointing.hf_export: a null policy has no Hugging Face form: set it to never")

    def state(self) -> dict[str, object]:
        return {"model": {NAME: self._weight.clone()}}

    def load_state(self, state: Mapping[str, object]) -> None:
        model = state["model"]
        assert isinstance(model, Mapping)
        self._weight.copy_(model[NAME])

    def state_template(self) -> dict[str, object]:
        return self.state()


class NullGenerator:
    """A Generator that answers 0 to everything."""

    def __init__(self, spec: RunSpec) -> None:
        self._weight = torch.zeros(1)

    def open(self, model_folder: Path) -> None:
        pass

    def encode(self, text: str) -> Tokens:
        return np.zeros(4, dtype=np.int32)

    def generate(
        self,
        prompts: Sequence[Tokens],
        seeds: Sequence[int],
        params: SamplingParams,
        should_stop: Callable[[], bool],
    ) -> list[Completion]:
        answer = Completion(np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.float32), "stop", "0\n")
        return [answer for _ in prompts]

    def wire_dtypes(self) -> dict[str, str]:
        return {NAME: "float32"}

    def load_weights(self, tensors: Mapping[str, object]) -> None:
        tensor = tensors[NAME]
        assert isinstance(tensor, torch.Tensor)
        self._weight.copy_(tensor)
