"""A prompt group: one prompt and its N samples; the unit of rollout, staleness and consumption."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.spec.ids import WeightVersion

Tokens = NDArray[np.int32]
Logprobs = NDArray[np.float32]
Mask = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One response. `tokens`, `logprobs` and `mask` have the same length T >= 1."""

    tokens: Tokens
    """Response token ids, [T]; the end-of-sequence token is included when it was sampled."""
    logprobs: Logprobs
    """Log-probability, in nats, of each token under the distribution it was sampled from, [T]."""
    mask: Mask
    """1 where the token is the policy's and is trained on, [T]."""
    finish_reason: str
    """`stop` (end of sequence or a stop string) or `length`."""
    text: str
    reward: float
    rewards: dict[str, float]
    """The reward by component; they sum to `reward`."""
    correct: bool
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class PromptGroup:
    """A finished prompt group. Its key within a run is the cursor position of its prompt."""

    key: int
    incarnation: int
    """The incarnation that generated it."""
    problem_id: str
    prompt: Tokens
    """Prompt token ids, [P]."""
    version_start: WeightVersion
    version_end: WeightVersion
    """Weights that sampled its first and its last token; equal unless a refit happened in flight."""
    samples: tuple[Sample, ...]
