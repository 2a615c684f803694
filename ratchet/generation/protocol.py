"""What a generation backend can do. An engine class: no Ray in it, driven in-process by unit tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.rollouts.group import Logprobs, Tokens
from ratchet.sessions.turns import Resident


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_new_tokens: int
    temperature: float = 1.0
    """0.0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Tokens and logprobs of one response, [T] each; `logprobs` are those of the sampling distribution."""

    tokens: Tokens
    logprobs: Logprobs
    finish_reason: str
    text: str


class Generator(Resident, Protocol):
    """A model that samples. Weights arrive by refit: a new generator has none, and refuses to generate."""

    def open(self, model_folder: Path) -> None:
        """Build model and tokenizer from a Hugging Face folder. Raises SpecError if it is not one."""
        ...

    def encode(self, text: str) -> Tokens:
        """Token ids of a prompt, [P]."""
        ...

    def generate(
        self,
        prompts: Sequence[Tokens],
        seeds: Sequence[int],
        params: SamplingParams,
        should_stop: Callable[[], bool],
    ) -> list[Completion]:
        """One completion per prompt, in order, all in one batch; each row draws from its own seed.

        Raises Cancelled when `should_stop` turns true (asked between tokens), InfraFault if no weights
        were ever loaded.
        """
        ...

    def wire_dtypes(self) -> dict[str, str]:
        """Name -> dtype (`float32`, `bfloat16`) of every tensor a refit must bring."""
        ...

    def load_weights(self, tensors: Mapping[str, object]) -> None:
        """Copy torch tensors, by name, into the model. Raises InfraFault on a missing or unknown name."""
        ...


GeneratorFactory = Callable[..., Generator]
