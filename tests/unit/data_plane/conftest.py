"""Small groups for data planes."""

from collections.abc import Callable

import numpy as np
import pytest

from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion


@pytest.fixture
def make_group() -> Callable[..., PromptGroup]:
    def make(key: int, text: str = "first", incarnation: int = 1) -> PromptGroup:
        version = WeightVersion(incarnation=incarnation, step=2, digest="ab" * 16)
        samples = tuple(
            Sample(
                tokens=np.full(length, key, dtype=np.int32),
                logprobs=np.full(length, -0.5, dtype=np.float32),
                mask=np.ones(length, dtype=np.uint8),
                finish_reason="stop",
                text=text,
                reward=float(length),
                rewards={"length": float(length)},
                correct=True,
                seed=length,
            )
            for length in (1, 2)
        )
        prompt = np.arange(3, dtype=np.int32)
        return PromptGroup(key, incarnation, f"problem {key}", prompt, version, version, samples)

    return make
