"""Arithmetic whose answers are checked by a tool far away: it takes its time, and no core of this machine."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ratchet.environments.arithmetic import ArithmeticEnvironment
from ratchet.environments.protocol import Problem

MEDIAN_S, P99_S = 0.5, 5.0
SPREAD = math.log(P99_S / MEDIAN_S) / 2.3263
"""Of the logarithm of a latency: a normal's 99th percentile lies so many of its deviations up."""


class RemoteTool(ArithmeticEnvironment):
    """Each response waits for a latency of its own, the same in every run of a seed."""

    def __init__(self, options: Mapping[str, object], seed: int) -> None:
        super().__init__(options, seed)
        self._seed = seed
        self._asked: Counter[str] = Counter()

    async def score(self, problem: Problem, text: str) -> Any:  # what the protocol's may be
        self._asked[problem.id] += 1
        draw = random.Random(f"{self._seed}/{problem.id}/{self._asked[problem.id]}")
        await asyncio.sleep(MEDIAN_S * math.exp(draw.gauss(0.0, SPREAD)))
        return super().score(problem, text)
