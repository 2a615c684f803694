"""Seconds a step of the demo, next to a plain transformers + PyTorch loop that does the same work.

The two take turns, step by step, so that whatever else the machine does meets both. Where TRL is installed,
its GRPOTrainer takes its turn too.
"""

import importlib.util
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.paused_run import STEPPING, PausedRun
from benchmarks.report import Report, arguments
from benchmarks.stack import Stack, embedded_stack
from ratchet.models.prepare import prepare_model
from ratchet.spec.home import Home
from ratchet.spec.loading import load_spec
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.views import StepView

if TYPE_CHECKING:
    from benchmarks.plain_loop import PlainStep
    from benchmarks.trl_loop import TrlLoop

RECIPE = Path(__file__).parent.parent / "recipes" / "smollm2-arithmetic.yaml"
STEPS, QUICK_STEPS = 10, 2
WARM_UP = 1
"""Steps of every side that do not count: the first one allocates."""

STEPS_ONLY = ("grpo.max_num_steps=1000000", "evaluation.num_problems=0", "checkpointing.every=0")
"""As many steps as are asked for, and nothing before or between them."""


class Turns(NamedTuple):
    """The steps that count, in the order they were made."""

    ratchet: list[StepView]
    plain: "list[PlainStep]"
    trl: list[float]
    """Seconds; empty without TRL."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="what every side trains")
    parser.add_argument("--precision", help="of training and generation (default: the recipe's)")
    parser.add_argument("--models", type=Path, default=Home().models, help="prepared base models, to share")
    parser.add_argument("--steps", type=int, help=f"of every side (default {STEPS}, quick {QUICK_STEPS})")
    options = parser.parse_args()
    overrides = list(STEPS_ONLY)
    if options.precision:
        overrides += [f"policy.precision={options.precision}", f"generation.precision={options.precision}"]
    spec = load_spec(options.recipe, overrides)
    report = Report(options.json_only)
    with embedded_stack(options.models) as stack:
        turns = take_turns(stack, spec, options.steps or (QUICK_STEPS if options.quick else STEPS), report)
    publish(report, spec, turns)


def take_turns(stack: Stack, spec: RunSpec, steps: int, report: Report) -> Turns:
    """Let every side make its warm-up and then `steps` steps, one after the other."""
    report.progress(f"starting a run of {spec.name} …")
    run = PausedRun(stack, spec)
    from transformers.utils.logging import disable_progress_bar

    from benchmarks.plain_loop import PlainLoop

    disable_progress_bar()
    folder = prepare_model(spec.policy.model, stack.home)
    plain = PlainLoop(spec, folder)
    ratchet_steps: list[StepView] = []
    plain_steps: list[PlainStep] = []
    trl_steps: list[float] = []
    with _trl(spec, folder, WARM_UP + steps) as trl:
        for index in range(WARM_UP + steps):
            ratchet_steps.append(run.step())
            plain_steps.append(plain.step(ratchet_steps[-1].step - 1))
            said = f"ratchet {seconds(ratchet_steps[-1]):.2f} s, plain {plain_steps[-1].total_s:.2f} s"
            if trl is not None:
                trl_steps.append(trl.step())
                said += f", TRL {trl_steps[-1]:.2f} s"
            report.progress(f"{'warm-up' if index < WARM_UP else f'step {index}'}: {said}")
    return Turns(ratchet_steps[WARM_UP:], plain_steps[WARM_UP:], trl_steps[WARM_UP:])


def _trl(spec: RunSpec, folder: Path, steps: int) -> "AbstractContextManager[TrlLoop | None]":
    if importlib.util.find_spec("trl") is None:
        return nullcontext()
    from benchmarks.trl_loop import TrlLoop

    return TrlLoop(spec, folder, steps, STEPPING)


def seconds(step: StepView) -> float:
    """From the step's first operation being scheduled to its last one being done."""
    return (step.finished_at - step.started_at).total_seconds()


def publish(report: Report, spec: RunSpec, turns: Turns) -> None:
    """Medians of every side; medians of parts need not sum up to that of the whole."""
    ratchet_s = _median(seconds(step) for step in turns.ratchet)
    plain_s = _median(step.total_s for step in turns.plain)
    trl_s = _median(turns.trl) if turns.trl else None
    ratchet = {
        "rollout": _median(step.rollout_s for step in turns.ratchet),
        "train": _median(step.train_s for step in turns.ratchet),
        "refit": _median(step.refit_s for step in turns.ratchet),
        "rest": _median(seconds(s) - s.rollout_s - s.train_s - s.refit_s for s in turns.ratchet),
    }
    plain = {
        "generate": _median(step.generate_s for step in turns.plain),
        "train": _median(step.train_s for step in turns.plain),
    }
    trained = {
        "ratchet": round(fmean(step.num_groups - step.zero_advantage_groups for step in turns.ratchet), 2),
        "plain": round(fmean(step.groups_trained for step in turns.plain), 2),
    }
    precision = _precision(spec)
    steps = len(turns.plain)
    report.publish(
        f"Seconds a step of {spec.name} in {precision}, medians of {steps}",
        ["", "ratchet", "plain loop", "TRL"],
        [
            ["a step", f"{ratchet_s:.2f}", f"{plain_s:.2f}", f"{trl_s:.2f}" if trl_s else "-"],
            ["  rollout", f"{ratchet['rollout']:.2f}", f"{plain['generate']:.2f}", ""],
            ["  train", f"{ratchet['train']:.2f}", f"{plain['train']:.2f}", ""],
            ["  refit", f"{ratchet['refit']:.2f}", "", ""],
            ["  rest", f"{ratchet['rest']:.2f}", "", ""],
            ["groups trained", f"{trained['ratchet']}", f"{trained['plain']}", ""],
            ["ratchet / this", "", f"{ratchet_s / plain_s:.2f}", f"{ratchet_s / trl_s:.2f}" if trl_s else ""],
        ],
        {
            "benchmark": "step",
            "ratchet_s": ratchet_s,
            "plain_s": plain_s,
            "ratio": round(ratchet_s / plain_s, 3),
            "steps": steps,
            "precision": precision,
            "parts": {"ratchet": ratchet, "plain": plain},
            "groups_trained": trained,
            "trl": trl_s,
        },
    )


def _median(values: Iterable[float]) -> float:
    return round(median(values), 3)


def _precision(spec: RunSpec) -> str:
    """What training and generation compute in on this machine."""
    import torch

    from ratchet.policy.precision import resolve

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, generate = (
        str(resolve(asked, device)).removeprefix("torch.")
        for asked in (spec.policy.precision, spec.generation.precision)
    )
    return train if train == generate else f"{train} (generation: {generate})"


if __name__ == "__main__":
    main()
