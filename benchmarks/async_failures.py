"""An asynchronous run in which something dies every minute, beside one that nobody touches.

The tiny recipe with steps that take groups as they are finished, for about ten minutes; six control
processes, three actors and the whole head are killed, one a minute, while it goes on. Exit code 1 if the
held-out accuracies at the end differ by more than 0.05, or if a prompt was lost, trained twice or
trained too late.

JSON: `reward_undisturbed`, `reward_disturbed`, `difference`, `kills`, `incarnations`, `seconds` of each.
"""

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.evidence import empty_store, gather
from benchmarks.chaos.oracles import judge
from benchmarks.chaos.stack import ChaosStack, chaos_stack
from benchmarks.chaos.table import Victim
from benchmarks.chaos.victims import pid_of
from benchmarks.report import Report, arguments
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from ratchet.spec.loading import load_spec
from ratchet.spec.run_spec import RunSpec
from workers.supervisor.processes import signal_to

RECIPE = Path(__file__).parent.parent / "recipes" / "tiny-addition.yaml"
VICTIMS = (
    Victim.CONTROL_WORKER,
    Victim.GENERATOR,
    Victim.SESSION_WORKER,
    Victim.API,
    Victim.TRAINER,
    Victim.TEMPORAL,
    Victim.HEAD,
    Victim.SESSION_HOST,
    Victim.CONDUCTOR,
    Victim.CONTROL_WORKER,
)
"""Six of the control processes, three actors, the head."""
EVERY_S, QUICK_EVERY_S = 60.0, 12.0
STEPS, QUICK_STEPS = 600, 120
"""A second or so each: the run has to go on past the last of the blows."""
WITHIN = 1800.0
ALLOWED = 0.05
SETTINGS = (
    "asynchronous.sampler=ready_first",
    "asynchronous.refit=keep",
    "asynchronous.max_staleness=2",
    "evaluation.at_start=false",
    "checkpointing.hf_export=never",
    "data_plane.backend=simple",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    reward: float
    seconds: float
    kills: int
    incarnations: int
    problems: dict[str, list[str]]


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report(options.json_only)
    steps, every = (QUICK_STEPS, QUICK_EVERY_S) if options.quick else (STEPS, EVERY_S)
    spec = load_spec(RECIPE, [*SETTINGS, f"grpo.max_num_steps={steps}"])
    with chaos_stack(Home().models) as stack:
        quiet = carry_out(stack, spec, "quiet", (), every, report)
        struck = carry_out(stack, spec, "struck", VICTIMS, every, report)
    difference = abs(quiet.reward - struck.reward)
    report.publish(
        f"{steps} steps, a blow every {every:.0f} s",
        ["", "reward", "seconds", "blows", "incarnations"],
        [_row("undisturbed", quiet), _row("disturbed", struck)],
        {
            "benchmark": "async_failures",
            "reward_undisturbed": quiet.reward,
            "reward_disturbed": struck.reward,
            "difference": round(difference, 4),
            "kills": struck.kills,
            "incarnations": struck.incarnations,
            "seconds": [round(quiet.seconds, 1), round(struck.seconds, 1)],
            "problems": sorted({*quiet.problems, *struck.problems}),
        },
    )
    sound = not quiet.problems and not struck.problems and struck.kills == len(VICTIMS)
    sys.exit(0 if sound and difference <= ALLOWED else 1)


def carry_out(
    stack: ChaosStack, spec: RunSpec, run: str, victims: tuple[Victim, ...], every: float, report: Report
) -> Outcome:
    """Raises RatchetError if it does not end."""
    launched, kills = time.monotonic(), 0
    stack.api.launch(spec.model_dump(mode="json", exclude_unset=True), run)
    for number, victim in enumerate(victims, 1):
        while time.monotonic() < launched + number * every:
            time.sleep(0.1)
        if kill(stack, victim, run):
            kills += 1
            report.progress(f"{time.monotonic() - launched:5.0f} s: {victim}")
    while (record := stack.store.get_run(run)) is None or not record.phase.final:
        if time.monotonic() > launched + WITHIN:
            raise RatchetError(f"run {run} did not end within {WITHIN:.0f} s")
        time.sleep(0.5)
    seconds = time.monotonic() - launched
    evaluations = stack.store.evaluations(run)
    folder = stack.home.root / f"mirror-{run}"
    folder.mkdir()
    mirror = empty_store(folder)
    evidence = gather(stack.home, stack.store, mirror, run, spec, None, [], [])
    problems = judge(evidence)
    mirror.close()
    for name, found in problems.items():
        report.progress(f"{run}: {name}: {found[0]}")
    return Outcome(
        reward=(evaluations[-1].accuracy if evaluations else None) or 0.0,
        seconds=seconds,
        kills=kills,
        incarnations=record.incarnation,
        problems=problems,
    )


def kill(stack: ChaosStack, victim: Victim, run: str) -> bool:
    """Whether there was one within ten seconds: it may be on its way back from something."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        if pid := pid_of(stack.home, victim, run):
            signal_to(pid, signal.SIGKILL)
            return True
        time.sleep(0.05)
    return False


def _row(name: str, outcome: Outcome) -> list[str]:
    return [
        name,
        f"{outcome.reward:.3f}",
        f"{outcome.seconds:.0f}",
        str(outcome.kills),
        str(outcome.incarnations),
    ]


if __name__ == "__main__":
    main()
