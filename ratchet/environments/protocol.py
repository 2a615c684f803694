"""What an environment can do."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: what the policy reads, and what scoring needs."""

    id: str
    """Names the problem itself: two problems with one id are the same problem."""
    prompt: str
    answer: str
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    correct: bool
    components: dict[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """Deterministic: the same seed and position give the same problem, always and anywhere."""

    def train_problem(self, position: int) -> Problem:
        """The training problem at a cursor position, any position >= 0; never a held-out one."""
        ...

    def heldout_problem(self, index: int) -> Problem:
        """The held-out problem `index`, from a list fixed by the seed.
        Raises SpecError past `num_heldout`."""
        ...

    @property
    def num_heldout(self) -> int: ...

    def score(self, problem: Problem, text: str) -> Score:
        """Score a response. Raises DataFault if the problem cannot be scored: never a zero instead.

        One that waits for something far away may be a coroutine function (`async def`): the responses that
        rollouts have are then scored beside each other.
        """
        ...
