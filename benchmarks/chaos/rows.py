"""Carrying out a row: a run of its own, struck at its moments, and left alone until it ends."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.evidence import Blow
from benchmarks.chaos.stack import ChaosStack
from benchmarks.chaos.table import Moment, Row, Strike, Table, Victim
from benchmarks.chaos.victims import ILL_LASTS, PARTS, ill, is_back, pid_of
from ratchet.spec.faults import RatchetError, Unavailable
from ratchet.spec.run_spec import RunSpec
from ratchet.store.records import RunRecord
from workers.supervisor.processes import signal_to

HIT_WITHIN = 120.0
"""For a run to come to a moment: its start, and what it recovers from before it."""
END_WITHIN = 150.0
BACK_WITHIN = 60.0
ANY_TIME = (0.1, 0.7)
"""As shares of the fastest run so far: this one may be a little faster."""
_LOOK_EVERY = 0.02
_LOOK_INTO_STORE_EVERY = 0.2
_NOBODY_THERE_WITHIN = 20.0


@dataclass(slots=True)
class Carried:
    """What was done to a run."""

    run: str
    blows: list[Blow] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """From its launch to its end."""


class Carrier:
    """Carries out one row on a stack."""

    def __init__(self, stack: ChaosStack, table: Table, row: Row, run: str, seed: int) -> None:
        self._stack = stack
        self._table = table
        self._row = row
        self._random = random.Random(f"{seed}/{row}")
        self._carried = Carried(run)
        self._looked_at = 0.0
        self._ended = False

    def carry_out(self, spec: RunSpec, at_least: float) -> Carried:
        """Launch, strike, wait. `at_least`: seconds that its run will last. Raises RatchetError if it
        cannot be launched."""
        carried, strikes = self._carried, self._row.strikes
        self._arm_counted(strikes)
        launched = time.monotonic()
        self._stack.api.launch(spec.model_dump(mode="json", exclude_unset=True), carried.run)
        if strikes:
            self._arm(strikes[0])
        for index, strike in enumerate(strikes):
            if not self._wait_for(strike, at_least):
                carried.missed.append(f"{strike}: nobody came there")
                self._stack.failpoints.clear()
                break
            if index + 1 < len(strikes):
                self._arm(strikes[index + 1])  # before the run can go on from this blow
            self._strike(strike)
        self._until(lambda: False, END_WITHIN)
        carried.seconds = time.monotonic() - launched
        self._wait_for_the_stack()
        self._stack.failpoints.clear()
        return carried

    # --- moments

    def _moment(self, strike: Strike) -> Moment:
        return self._table.moment(self._row, strike)

    def _arm_counted(self, strikes: Sequence[Strike]) -> None:
        """Failpoints whose passings count from the run's start."""
        for moment in map(self._moment, strikes):
            if moment.after:
                self._stack.failpoints.arm(moment.after.failpoint, moment.after.action("sleep 0"))
            elif moment.at and moment.at.pass_:
                self._stack.failpoints.arm(moment.at.failpoint, moment.at.action("hold"))

    def _arm(self, strike: Strike) -> None:
        """Those where the next passing counts."""
        moment = self._moment(strike)
        if moment.at and not moment.at.pass_ and not moment.after:
            self._stack.failpoints.arm(moment.at.failpoint, moment.at.action("hold"))

    def _wait_for(self, strike: Strike, at_least: float) -> bool:
        moment, failpoints = self._moment(strike), self._stack.failpoints
        if moment.at is None:
            chosen = time.monotonic() + self._random.uniform(*ANY_TIME) * at_least
            self._until(lambda: time.monotonic() > chosen, at_least)
            return not self._ended
        if moment.after:
            after = moment.after.failpoint
            if not self._until(lambda: bool(failpoints.hits(after)), HIT_WITHIN):
                return False
            failpoints.arm(moment.at.failpoint, moment.at.action("hold"))
        at = moment.at.failpoint
        return self._until(lambda: bool(failpoints.hits(at)), HIT_WITHIN)

    # --- blows

    def _strike(self, strike: Strike) -> None:
        stack, run, moment = self._stack, self._carried.run, self._moment(strike)

        def go_on() -> None:
            if moment.at:
                stack.failpoints.release(moment.at.failpoint)

        if not strike.victim.is_process:
            try:
                with ill(stack.home, strike.victim, run):
                    blow = Blow(strike, time.time(), None)
                    go_on()
                    self._wait_out(strike)
            except RatchetError as error:
                self._carried.missed.append(f"{strike}: {error}")
                return go_on()
            blow.back_at = time.time()
            self._carried.blows.append(blow)
            return None
        # A part that another blow took away may be on its way back.
        if not self._until(lambda: pid_of(stack.home, strike.victim, run) is not None, _NOBODY_THERE_WITHIN):
            self._carried.missed.append(f"{strike}: there is no {strike.victim} at that moment")
            return go_on()
        pid = pid_of(stack.home, strike.victim, run)
        assert pid is not None
        blow = Blow(strike, time.time(), pid, at_moment=moment.at is not None)
        if strike.victim is Victim.HEAD:
            blow.trainer = pid_of(stack.home, Victim.TRAINER, run)
        signal_to(pid, strike.signal)
        go_on()
        self._carried.blows.append(blow)
        return None

    def _wait_out(self, strike: Strike) -> None:
        """A full disk has done what it can once a checkpoint was lost to it: the next would soon be due."""
        end = time.monotonic() + ILL_LASTS[strike.victim]
        while time.monotonic() < end:
            if strike.victim is Victim.DISK_FULL and self._stack.store.incidents(self._carried.run):
                return
            time.sleep(_LOOK_EVERY)
        if strike.victim is Victim.DISK_FULL:
            self._carried.missed.append(f"{strike}: the run never noticed it")

    # --- waiting

    def _until(self, reached: Callable[[], bool], within: float) -> bool:
        """Whether it was reached before the run ended; meanwhile, see who is back."""
        end = time.monotonic() + within
        while not reached():
            self._look_after_victims()
            if self._has_ended() or time.monotonic() > end:
                return reached()
            time.sleep(_LOOK_EVERY)
        return True

    def _wait_for_the_stack(self) -> None:
        """A part that is frozen looks as if it were there: the next row must not be the one to find out."""
        end = time.monotonic() + BACK_WITHIN
        parts = [blow for blow in self._carried.blows if blow.strike.victim in PARTS]
        while any(blow.back_at is None for blow in parts) and time.monotonic() < end:
            self._look_after_victims()
            time.sleep(_LOOK_EVERY)

    def _look_after_victims(self) -> None:
        home, run = self._stack.home, self._carried.run
        for blow in self._carried.blows:
            victim = blow.strike.victim
            if blow.back_at is None and blow.pid and is_back(home, victim, run, blow.pid):
                blow.back_at = time.time()
            if blow.rebuilt_at is None and blow.trainer and is_back(home, Victim.TRAINER, run, blow.trainer):
                blow.rebuilt_at = time.time()

    def _has_ended(self) -> bool:
        now = time.monotonic()
        if not self._ended and now - self._looked_at > _LOOK_INTO_STORE_EVERY:
            self._looked_at = now
            record = self._record()
            self._ended = record is not None and record.phase.final
        return self._ended

    def _record(self) -> RunRecord | None:
        try:
            return self._stack.store.get_run(self._carried.run)
        except Unavailable:
            return None  # it may be what was struck
