"""Following a run over the API for hours, through restarts of whatever answers."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.spec.state import RunPhase
from ratchet.spec.views import RunView, StepView

POLL = 1.0
"""Seconds between looks: each one asks the workflow, which has other things to do."""
ETA_STEPS = 10
"""The estimate looks at the median of so many steps, so that one long one does not move it."""


_MOVING = (RunPhase.RUNNING, RunPhase.PAUSED, RunPhase.STOPPING)
"""Phases in which the steps that are known stay."""


class RunReader(Protocol):
    def run(self, run: str) -> RunView: ...

    def steps(self, run: str, since: int = 0) -> list[StepView]: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a run at a moment."""

    view: RunView
    steps: Sequence[StepView]
    """Every step on the path to the head, in order."""
    away_s: float = 0.0
    """How long the API has not answered; 0 when it does."""

    @property
    def seconds_per_step(self) -> float | None:
        """Median time from one step's end to the next: evaluations and checkpoints included."""
        ends = [step.finished_at.timestamp() for step in self.steps[-ETA_STEPS - 1 :]]
        if len(ends) < 2:
            return None
        return median(b - a for a, b in pairwise(ends))

    @property
    def remaining_s(self) -> float | None:
        """Estimate of the time to the last step; None when nothing moves or nothing is known yet."""
        per_step = self.seconds_per_step
        if per_step is None or self.view.phase is not RunPhase.RUNNING:
            return None
        return per_step * (self.view.max_num_steps - self.view.step)


def follow(
    api: RunReader, run: str, *, poll: float = POLL, patience: float = deadlines.WATCH_AWAY
) -> Iterator[Sight]:
    """Look at a run every `poll` seconds until it has ended; the last sight is the ended one.

    Raises Unavailable at once if nothing answers the first time, later only after `patience` seconds.
    """
    sight = _look(api, run, None)
    answered = time.monotonic()
    while True:
        yield sight
        if sight.view.phase.final and not sight.away_s:
            return
        time.sleep(poll)
        try:
            sight = _look(api, run, sight)
            answered = time.monotonic()
        except Unavailable as error:
            away = time.monotonic() - answered
            if away > patience:
                raise Unavailable(
                    f"gave up watching after {away:.0f} s without an answer; the run itself goes on ({error})"
                ) from None
            sight = Sight(sight.view, sight.steps, away)


def _look(api: RunReader, run: str, last: Sight | None) -> Sight:
    view = api.run(run)
    # A new incarnation may have trained steps again, and until its restore is on record nobody knows which:
    # then all of them are read anew.
    settled = last is not None and last.view.phase in _MOVING and last.view.incarnation == view.incarnation
    known = [step for step in last.steps if step.step <= view.step] if last and settled else []
    new = api.steps(run, since=known[-1].step if known else 0)
    return Sight(view, [*known, *new])
