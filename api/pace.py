"""How fast a caller may launch: a bucket of tokens for each, refilled at a rate."""

import math
import time
from collections.abc import Callable

from api.problems import TooManyLaunches

KNOWN_CALLERS = 10_000


class Pace:
    """Of this process; a second API behind a balancer has its own."""

    def __init__(self, at_once: int, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By caller: how many were left, and when."""

    def take(self, who: str) -> None:
        """One launch more. Raises TooManyLaunches, with the seconds to wait."""
        now = self._clock()
        left, at = self._left.pop(who, (float(self._at_once), now))
        left = min(left + (now - at) * self._per_second, self._at_once)
        allowed = left >= 1.0
        self._left[who] = (left - allowed, now)  # the newest are last
        if len(self._left) > KNOWN_CALLERS:
            self._left.pop(next(iter(self._left)))
        if not allowed:
            wait = math.ceil((1.0 - left) / self._per_second)
            raise TooManyLaunches(f"{who} launches too fast: try again in {wait} s", retry_after=wait)
