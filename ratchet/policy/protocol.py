"""What a trainer backend can do. An engine class: no Ray in it, driven in-process by unit tests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.rollouts.group import PromptGroup
from ratchet.sessions.turns import Resident
from ratchet.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did."""

    metrics: dict[str, float]
    num_tokens: int
    zero_advantage_groups: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    num_parameters: int
    model_digest: str
    """xxh3-128 of the weights as loaded, see WeightVersion."""


class PolicyTrainer(Resident, Protocol):
    """Holds master weights and optimizer, and moves them one step at a time."""

    def open(self, model_folder: Path) -> LoadResult:
        """Load the base model (and the reference, when the loss wants one). Raises SpecError."""
        ...

    def adopt(self, spec: RunSpec) -> None:
        """Take hyperparameters from `spec` from the next step on (see `with_values` for which can change)."""
        ...

    def train(
        self, step: int, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()
    ) -> StepResult:
        """One optimizer step over `groups`, in their order: begin -> microbatch* -> finish.

        `step` counts from 1 and chooses the learning rate. `crossed` are the keys of groups that other
        weights had sampled, before a recovery: they are importance-corrected, or discarded where they are too
        far away. An error before `finish` leaves weights, optimizer and RNG as they were; one inside it
        raises Poisoned.
        """
        ...

    def begin(self, step: int) -> None:
        """Open a step whose groups come one after the other; one that a dead caller left open is aborted."""
        ...

    def add(self, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()) -> None:
        """Some of the open step's groups. Raises DataFault as `train` does; `abort` is for the caller."""
        ...

    def abort(self) -> None:
        """Leave weights, optimizer and RNG as if the open step, if there is one, had never begun."""
        ...

    def finish(self) -> StepResult:
        """Update: the point of no return. Raises as `train` does."""
        ...

    def digest(self) -> str:
        """xxh3-128 of the weights over sorted (name, dtype, shape, bytes), as hex."""
        ...

    def weights(self) -> Mapping[str, object]:
        """Name -> torch tensor, the live weights, for staging a refit. Not to be written to."""
        ...

    def export_hf(self, target: Path, weights: Mapping[str, object]) -> None:
        """Write `weights`, named as in `weights()`, as a folder that `from_pretrained` loads."""
        ...

    def state(self) -> dict[str, object]:
        """Everything a checkpoint must hold, as a nested dict of tensors and plain values:
        `model`, `optimizer`, `rng`. A deep copy: training may go on while it is written."""
        ...

    def load_state(self, state: Mapping[str, object]) -> None:
        """The inverse of `state`."""
        ...

    def state_template(self) -> dict[str, object]:
        """A nested dict of the shapes of `state`, to load a checkpoint into."""
        ...
