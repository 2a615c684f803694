"""How long a run stood still after each blow, and what that time went into."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.chaos.evidence import Blow, Evidence
from benchmarks.chaos.history import Done
from benchmarks.chaos.table import Strike, Victim
from ratchet.spec.home import Home
from ratchet.spec.ids import OpKind

LEADS_BACK = (OpKind.RESTORE, OpKind.REFIT)
"""Operations that a recovery itself consists of: what comes after them is the run going on."""

FROM_BACK = frozenset(victim for victim in Victim if not victim.is_process) | {
    Victim.API,
    Victim.CONTROL_WORKER,
    Victim.TEMPORAL,
}
"""Their recovery counts from when they are back: what brings them back is not the run's to do."""

_FROZEN = "process {pid} of the Ray head has been frozen"
_NOTICED = {
    Victim.API: ("supervisor.log", r"api \(pid {pid}\) (ended|was silent)"),
    Victim.CONTROL_WORKER: ("supervisor.log", r"control-worker \(pid {pid}\) (ended|was silent)"),
    Victim.TEMPORAL: ("supervisor.log", r"temporal \(pid {pid}\) (ended|was silent)"),
    Victim.GCS: ("supervisor.log", rf"ray's GCS .* executed again|{_FROZEN}"),
    Victim.HEAD: ("supervisor.log", rf"the Ray head is lost|{_FROZEN}"),
    Victim.SESSION_WORKER: ("supervisor.log", r"session-{run}-1 \(pid {pid}\) (ended|was silent)"),
    Victim.SESSION_HOST: ("session-{run}-1.log", r"session host {pid}(:| ended)"),
    Victim.CONDUCTOR: ("session-{run}-1.log", "the conductor is lost"),
}
"""Which log tells that a loss was noticed, and in which words. Of the engines, incidents tell it."""

_TIME = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ")


PARTS = ("detect", "reprovision", "restore", "recompute")


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a blow to the next committed operation, in the parts they went into."""

    strike: Strike
    detect: float
    """Until the loss was noticed; with `reprovision`, when nobody wrote down that they noticed it."""
    reprovision: float
    """Until another process had taken over; of a head, until it had a trainer in it."""
    restore: float
    """Until weights were where they belong again."""
    recompute: float
    """Until the next operation was done: most of it had to be done anyway."""
    back: float | None = None
    """From the blow to another process having taken over, or to the end of the ill; the run may have gone on
    before that."""

    @property
    def stood_still(self) -> float:
        return self.detect + self.reprovision + self.restore + self.recompute

    @property
    def seconds(self) -> float:
        """What the recovery is held to: see FROM_BACK."""
        from_back = self.strike.victim in FROM_BACK
        return self.restore + self.recompute if from_back else self.stood_still

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {self.part(name):.1f}" for name in PARTS)
        back = f"; back after {self.back:.1f}" if self.back is not None else ""
        return f"{self.seconds:.1f} s ({parts}{back})"

    def part(self, name: str) -> float:
        """One of PARTS, in seconds."""
        return getattr(self, name)


def recoveries(home: Home, evidence: Evidence) -> list[Recovery]:
    """One for every blow that the run had time to recover from before the next. Not of those at any time:
    the next operation may have been a long way off without them."""
    found: list[Recovery] = []
    history, run = evidence.history, evidence.run.id if evidence.run else ""
    for index, blow in enumerate(evidence.blows):
        if not blow.at_moment:
            continue
        later = [other.at for other in evidence.blows[index + 1 :]]
        noticed = noticed_at(home, run, blow, evidence)
        recovery = split(blow, noticed, history.operations, history.closed_at)
        if recovery and not any(at < blow.at + recovery.stood_still for at in later):
            found.append(recovery)
    return found


def split(
    blow: Blow, noticed: float | None, operations: Iterable[Done], closed_at: float | None
) -> Recovery | None:
    """Cut the time from the blow to the next operation where things happened; None if there is no next."""
    # An operation that was under way is done without those who only order operations.
    orders = blow.strike.victim in FROM_BACK
    after = [done for done in operations if (done.scheduled_at if orders else done.done_at) > blow.at]
    # Nor does one show anything that ended while its trainer was gone: the run went back behind it.
    going_back = (n for n, done in enumerate(after) if done.op.incarnation > 1 and _restores(done))
    after = after[next(going_back, 0) :]
    leading: list[Done] = []
    for done in after:
        if done.op.kind not in LEADS_BACK:
            break
        leading.append(done)
    committed = after[len(leading)].done_at if len(leading) < len(after) else closed_at
    if committed is None or committed < blow.at:
        return None
    # A refit that was under way anyway restores nothing: only what follows a restore does.
    restored = None
    if any(map(_restores, leading)):
        restored = leading[-1].done_at
    marks = [blow.at]
    for mark in (noticed, blow.rebuilt_at or blow.back_at, restored, committed):
        marks.append(min(max(marks[-1], mark if mark is not None else marks[-1]), committed))
    detect, reprovision, restore, recompute = (b - a for a, b in itertools.pairwise(marks))
    back_after = None if blow.back_at is None else blow.back_at - blow.at
    return Recovery(blow.strike, detect, reprovision, restore, recompute, back_after)


def _restores(done: Done) -> bool:
    return done.op.kind is OpKind.RESTORE


def noticed_at(home: Home, run: str, blow: Blow, evidence: Evidence) -> float | None:
    """When somebody wrote down that the victim was lost."""
    if blow.strike.victim in _NOTICED:
        name, pattern = _NOTICED[blow.strike.victim]
        log = home.logs / name.format(run=run)
        return first_line(log, pattern.format(run=re.escape(run), pid=blow.pid), blow.at)
    told = (
        row.data["detected_at"]
        for row in evidence.incidents
        if row.data.get("lost") == blow.strike.victim.value
    )
    return min((float(at) for at in told if isinstance(at, int | float) and at >= blow.at), default=None)


def first_line(log: Path, pattern: str, since: float) -> float | None:
    """When the first matching line was written, at or after `since`; None: never."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        stamp = _TIME.match(line)
        if stamp and re.search(pattern, line):
            at = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            if at >= since - 0.002:  # logs cut to the millisecond
                return at
    return None


def worst(found: Sequence[Recovery]) -> dict[str, Recovery]:
    """The longest recovery from each way to strike each victim."""
    by_victim: dict[str, Recovery] = {}
    for recovery in found:
        known = by_victim.get(recovery.strike.label)
        if known is None or recovery.seconds > known.seconds:
            by_victim[recovery.strike.label] = recovery
    return dict(sorted(by_victim.items()))
