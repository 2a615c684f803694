"""Kill anything, lose nothing, end bit-identical: every row of `table.yaml`, each on a run of its own.

A row says what is struck and at which moment; the oracles say what is wrong afterwards. The exit code is 1 if
one of them found something, or if none did where joining was switched off (the negative control).
"""

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.chaos import ettr
from benchmarks.chaos.evidence import empty_store
from benchmarks.chaos.recovery import PARTS, Recovery, worst
from benchmarks.chaos.session import Judged, Session
from benchmarks.chaos.table import SYNCHRONOUS, Victim, chosen, load_table
from benchmarks.report import Report, arguments
from ratchet.spec.home import Home

RED_BY = ("steps", "ledger")
"""One of these oracles has to notice that joining is switched off."""

KIND = {
    Victim.API: "control",
    Victim.CONTROL_WORKER: "control",
    Victim.TEMPORAL: "control",
    Victim.SESSION_WORKER: "control",
    Victim.SESSION_HOST: "control",
    Victim.TRAINER: "trainer",
    Victim.GENERATOR: "generator",
    Victim.HEAD: "head",
}
"""Kinds of failures, as ETTR counts them."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=list(Victim), help="rows that strike this victim")
    parser.add_argument("--row", help="rows that have this text in their name")
    parser.add_argument("--seed", type=int, default=0, help="chooses the times that no moment names")
    parser.add_argument("--models", type=Path, default=Home().models, help="prepared base models, to share")
    parser.add_argument("--logs", type=Path, help="where to keep the logs of rows that went wrong")
    options = parser.parse_args()
    table, report = load_table(), Report(options.json_only)
    rows = chosen(table.quick if options.quick else table.rows, options.only, options.row)
    with tempfile.TemporaryDirectory(prefix="ratchet-mirror-") as folder:
        mirror = empty_store(Path(folder))
        session = Session(table, options.seed, options.models, mirror, report, options.logs)
        session.run_all(rows)
        control = session.run_negative_control()
        mirror.close()
    publish(report, session.judged, session.fastest(), control, options.seed)
    noticed = control.hit and any(name in control.problems for name in RED_BY)
    sys.exit(0 if noticed and not any(judged.problems for judged in session.judged) else 1)


def publish(report: Report, judged: Sequence[Judged], fastest: float, control: Judged, seed: int) -> None:
    """The worst recoveries, and the numbers."""
    found = [recovery for row in judged for recovery in row.recoveries]
    by_victim = worst(found)
    means = mean_recoveries(found)
    whole = means.keys() >= ettr.FAILURES.keys()
    struck = [row.seconds for row in judged if row.seconds and row.row.kind == SYNCHRONOUS]
    own = ettr.of_runs(fastest, struck) if struck else None
    failed = Counter(name for row in judged for name in row.problems)
    if whole:
        report.progress(f"ettr_at_60s_steps = {ettr.formula(means)}")
    if own is not None:
        report.progress(f"ettr = {len(struck)} × {fastest:.1f} s / {sum(struck):.1f} s = {own:.3f}")
    report.publish(
        "Worst recovery by victim, in seconds; of API, control worker, Temporal, store and disk: once back",
        ["", "recovery", *PARTS, "back", "struck"],
        [
            [
                label,
                f"{r.seconds:.1f}",
                *(f"{r.part(part):.1f}" for part in PARTS),
                "-" if r.back is None else f"{r.back:.1f}",
                f"at {r.strike.moment}",
            ]
            for label, r in by_victim.items()
        ],
        {
            "benchmark": "chaos",
            "kills": sum(row.kills for row in judged),
            "rows": len(judged),
            "rows_hit": sum(row.hit for row in judged),
            "oracles_failed": dict(failed),
            "negative_control_red": sorted(control.problems),
            "ettr": round(own, 4) if own is not None else None,
            "ettr_at_60s_steps": round(ettr.at_60s_steps(means), 4) if whole else None,
            "recovery_s": {
                label: {"worst": round(r.seconds, 2)}
                | {part: round(r.part(part), 2) for part in PARTS}
                | {"back": r.back and round(r.back, 2)}
                for label, r in by_victim.items()
            },
            "regenerated_groups": sum(row.regenerated for row in judged),
            "seed": seed,
        },
    )


def mean_recoveries(found: Sequence[Recovery]) -> dict[str, float]:
    """Seconds that a failure of each kind lets a run stand still."""
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for recovery in found:
        if kind := KIND.get(recovery.strike.victim):
            by_kind[kind].append(recovery.stood_still)
    return {kind: fmean(seconds) for kind, seconds in by_kind.items()}


if __name__ == "__main__":
    main()
