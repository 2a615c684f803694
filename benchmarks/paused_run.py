"""A run of the embedded stack that makes one step when it is told to."""

import time
from collections.abc import Callable

from benchmarks.stack import Stack, require_sound
from ratchet.spec.faults import RatchetError
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase
from ratchet.spec.views import RunView, StepView

RUN = "step"
STARTING, STEPPING = 900.0, 300.0
"""Longest wait for the run to be ready (its model may have to be prepared), and for a step."""
LOOK_EVERY = 0.25


class PausedRun:
    """Stands still between two calls of `step`: workflow, actors and weights stay where they are."""

    def __init__(self, stack: Stack, spec: RunSpec) -> None:
        """Launch it, and wait until it is ready to make its first step."""
        self._api = stack.api
        self._api.launch(spec.model_dump(mode="json", exclude_unset=True), RUN)
        self._api.act(RUN, "pause")
        self._made = 0
        self._wait("ready for its first step", _is_paused, STARTING)

    def step(self) -> StepView:
        """Make the next step. Raises RatchetError if the run fails or takes too long."""
        self._api.act(RUN, "resume")
        # A pause that comes before the step has begun would be obeyed before it.
        self._wait("at work", lambda view: bool(view.doing) or view.step > self._made, STEPPING)
        self._api.act(RUN, "pause")
        self._wait("done with its step", _is_paused, STEPPING)
        # The record is written while the run goes on.
        self._wait("on record", lambda _: bool(self._api.steps(RUN, since=self._made)), STEPPING)
        made = self._api.steps(RUN, since=self._made)[-1]
        self._made = made.step
        return made

    def _wait(self, what: str, reached: Callable[[RunView], bool], within: float) -> None:
        end = time.monotonic() + within
        while not reached(view := self._api.run(RUN)):
            require_sound(view)
            if time.monotonic() > end:
                raise RatchetError(f"the run was not {what} within {within:.0f} s; it is {view.phase.value}")
            time.sleep(LOOK_EVERY)


def _is_paused(view: RunView) -> bool:
    return view.phase is RunPhase.PAUSED
