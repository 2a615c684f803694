"""All rows, one after the other, on as few stacks as they leave whole."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.evidence import gather
from benchmarks.chaos.oracles import judge, regenerated_groups
from benchmarks.chaos.recovery import Recovery, recoveries
from benchmarks.chaos.rows import Carrier
from benchmarks.chaos.stack import ChaosStack, chaos_stack
from benchmarks.chaos.table import SYNCHRONOUS, Row, Table
from benchmarks.report import Report
from ratchet.spec.faults import RatchetError
from ratchet.spec.loading import load_spec
from ratchet.store import Store

ROOT = Path(__file__).parents[2]
WHOLE_WITHIN = 60.0
"""For a stack to have everything back before the next row."""
UNSOUND = ("ended", "orphans")
"""Oracles after whose failure a stack is not for another row."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A row, and what became of it."""

    row: Row
    seconds: float
    """From launch to end."""
    kills: int
    problems: dict[str, list[str]]
    """By the oracle that says so."""
    recoveries: list[Recovery]
    regenerated: int
    """Prompt groups that were generated again although they were finished."""
    digest: str | None

    @property
    def hit(self) -> bool:
        return "hit" not in self.problems


@dataclass(slots=True)
class Session:
    """Carries rows out and judges them."""

    table: Table
    seed: int
    models: Path
    mirror: Store
    """An empty store, for what histories tell."""
    report: Report
    logs: Path | None = None
    """Where to keep the logs of rows that went wrong."""
    undisturbed: dict[str, Judged] = field(default_factory=dict)
    """By kind, the run that nobody touched: what every other one must end like."""
    judged: list[Judged] = field(default_factory=list)

    def run_all(self, rows: Sequence[Row]) -> None:
        """Every row. Raises RatchetError if not even the undisturbed run is sound."""
        waiting = list(rows)
        while waiting or not self.undisturbed:
            with chaos_stack(self.models) as stack:
                if not self.undisturbed:
                    self.undisturbed[SYNCHRONOUS] = self._undisturbed(stack)
                while waiting:
                    if waiting[0].kind not in self.undisturbed:
                        self.undisturbed[waiting[0].kind] = self._untouched(stack, waiting[0].kind)
                    judged = self._one(stack, waiting.pop(0), f"{len(self.judged) + 1:02d}")
                    self.judged.append(judged)
                    self._tell(judged, f"{len(self.judged)}/{len(rows)}")
                    if any(name in judged.problems for name in UNSOUND):
                        break

    def run_negative_control(self) -> Judged:
        """Its row, on a stack where nothing is joined."""
        with chaos_stack(self.models, joining=False) as stack:
            judged = self._one(stack, self.table.negative_control, "nc")
        self._tell(judged, "negative control")
        return judged

    def _undisturbed(self, stack: ChaosStack) -> Judged:
        """Twice, since the first run of a stack also pays for cold caches, and for its base model; the faster
        one is what others are held against."""
        runs: list[Judged] = []
        for name in ("warm-up", "undisturbed"):
            runs.append(self._untouched(stack, SYNCHRONOUS, name))
        if len({run.digest for run in runs}) > 1:
            raise RatchetError("two runs that nobody touched ended in different weights")
        return min(runs, key=lambda run: run.seconds)

    def _untouched(self, stack: ChaosStack, kind: str, name: str = "undisturbed") -> Judged:
        judged = self._one(stack, Row((), kind), name)
        self._tell(judged, name)
        if judged.problems:
            raise RatchetError(f"a run that nobody touches is not sound: {judged.problems}")
        return judged

    def _one(self, stack: ChaosStack, row: Row, name: str) -> Judged:
        run = f"{name}-{row.slug}".rstrip("-")
        spec = load_spec(ROOT / self.table.recipe, self.table.settings_of(row))
        try:
            stack.wait_whole(WHOLE_WITHIN)
            carrier = Carrier(stack, self.table, row, run, self.seed)
            carried = carrier.carry_out(spec, self.fastest(row.kind))
        except RatchetError as error:
            return Judged(row, 0.0, 0, {"ended": [str(error)]}, [], 0, None)
        like = self.undisturbed.get(row.kind) if self.table.is_exact(row.kind) else None
        evidence = gather(
            stack.home,
            stack.store,
            self.mirror,
            run,
            spec,
            like.digest if like else None,
            carried.blows,
            carried.missed,
        )
        problems = judge(evidence)
        if problems and self.logs:
            self._keep_logs(stack, self.logs / run)
        return Judged(
            row,
            carried.seconds,
            len(carried.blows),
            problems,
            recoveries(stack.home, evidence),
            len(regenerated_groups(evidence)),
            evidence.digest,
        )

    def fastest(self, kind: str = SYNCHRONOUS) -> float:
        """Seconds of the fastest run of a kind so far: what else the machine does comes and goes."""
        runs = [*self.undisturbed.values(), *self.judged]
        return min((run.seconds for run in runs if run.digest and run.row.kind == kind), default=0.0)

    def _tell(self, judged: Judged, which: str) -> None:
        verdict = "RED  " if judged.problems else "green"
        recovery = "; ".join(str(one) for one in judged.recoveries)
        what = str(judged.row) or "nobody touches it"
        self.report.progress(f"{which:>6}  {verdict}  {judged.seconds:5.1f} s  {what}  {recovery}")
        for name, problems in judged.problems.items():
            for problem in problems:
                self.report.progress(f"        {name}: {problem}")

    def _keep_logs(self, stack: ChaosStack, folder: Path) -> None:
        shutil.copytree(stack.home.logs, folder / "stack", dirs_exist_ok=True)
        shutil.copytree(stack.home.ray_temp / "session_latest" / "logs", folder / "ray", dirs_exist_ok=True)
