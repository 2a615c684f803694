"""Does training still learn, over every backend of the data plane: `make nightly`.

A short run of tiny-addition over each, on a stack of its own; THRESHOLDS says what its metrics have to
be. The recipe is deterministic and a backend only carries bytes, so the rewards of all have to be the
same, step by step. A run that fails, or hangs without an error, is as red as one that learns nothing.
Exit code 1 if anything is missed.

JSON: `backends` -> each metric, and `seconds` of the run; `missed` (`backend metric`: empty).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.report import Report, arguments
from benchmarks.stack import Stack, embedded_stack
from ratchet.data_plane.backends import CAPABILITIES
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from ratchet.spec.loading import load_spec
from ratchet.spec.views import StepView

RECIPE = Path(__file__).parent.parent / "recipes" / "tiny-addition.yaml"
SHORT = ("evaluation.num_problems=0", "checkpointing.every=0", "checkpointing.hf_export=never")
STEPS, QUICK_STEPS = 60, 40
"""Rewards begin at about 0.5 and are 0.6 after 40."""
WITHIN = 600.0
"""Seconds for a run; it takes about one a step."""
LAST = 5
"""Steps that the final reward is the mean of."""
FAILED, DIFFERENT = "run", "rewards"


@dataclass(frozen=True, slots=True)
class Threshold:
    """What a metric of a run has to be."""

    metric: str
    low: float
    high: float

    def kept(self, value: float | None) -> bool:
        """A value that is missing or not a number is missed."""
        return value is not None and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


THRESHOLDS = (
    Threshold("reward_final", 0.55, 1.0),
    Threshold("reward_mean", 0.4, 1.0),
    Threshold("logprob_error_max", 0.0, 2e-3),
    Threshold("ratio_mean_min", 0.79, 1.21),
    Threshold("ratio_mean_max", 0.79, 1.21),
)


def metrics_of(steps: Sequence[StepView]) -> dict[str, float | None]:
    """The metrics that there are thresholds for; None where any step lacks it."""
    rewards = _all([step.reward_mean for step in steps])
    errors = _all([step.metrics.get("logprob_error") for step in steps])
    ratios = _all([step.metrics.get("ratio_mean") for step in steps])
    return {
        "reward_final": fmean(rewards[-LAST:]) if rewards else None,
        "reward_mean": fmean(rewards) if rewards else None,
        "logprob_error_max": max(errors, default=None),
        "ratio_mean_min": min(ratios, default=None),
        "ratio_mean_max": max(ratios, default=None),
    }


def _all(values: Sequence[float | None]) -> list[float]:
    """All of them, or none."""
    there = [value for value in values if value is not None]
    return there if len(there) == len(values) else []


def missed_by(metrics: dict[str, float | None]) -> list[str]:
    return [each.metric for each in THRESHOLDS if not each.kept(metrics[each.metric])]


def carry(stack: Stack, backend: str, steps: int) -> tuple[list[StepView], float]:
    """A run over that backend: its steps, and its seconds. Raises RatchetError."""
    spec = load_spec(RECIPE, [*SHORT, f"grpo.max_num_steps={steps}", f"data_plane.backend={backend}"])
    run = f"nightly-{backend.replace('_', '-')}"
    began = time.monotonic()
    stack.api.launch(spec.model_dump(mode="json", exclude_unset=True), run)
    stack.wait_end(run, WITHIN)
    return stack.api.steps(run), time.monotonic() - began


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--backends", nargs="+", choices=list(CAPABILITIES), default=list(CAPABILITIES))
    parser.add_argument("--models", type=Path, default=Home().models, help="prepared base models, to share")
    options = parser.parse_args()
    report = Report(options.json_only)
    count = QUICK_STEPS if options.quick else STEPS
    found: dict[str, dict[str, float | None]] = {}
    missed: dict[str, str] = {}
    rewards: dict[str, list[float | None]] = {}
    with embedded_stack(options.models) as stack:
        for backend in options.backends:
            report.progress(f"{count} steps over {backend} …")
            try:
                steps, seconds = carry(stack, backend, count)
            except RatchetError as error:
                missed[f"{backend} {FAILED}"] = str(error)
                report.progress(f"  red: {error}")
                continue
            metrics = metrics_of(steps)
            missed |= {f"{backend} {name}": f"is {metrics[name]}" for name in missed_by(metrics)}
            rewards[backend] = [step.reward_mean for step in steps]
            first = next(iter(rewards))
            if rewards[backend] != rewards[first]:
                missed[f"{backend} {DIFFERENT}"] = f"are not those of {first}"
            found[backend] = {**metrics, "seconds": seconds}
    report.publish(
        f"{count} steps of tiny-addition over each backend",
        ["", "threshold", *found],
        [
            [each.metric, str(each), *(_shown(metrics[each.metric], each) for metrics in found.values())]
            for each in THRESHOLDS
        ]
        + [["seconds", "", *(f"{metrics['seconds']:.0f}" for metrics in found.values())]],
        {
            "benchmark": "nightly",
            "steps": count,
            "backends": {
                backend: {
                    name: value if value is None else float(f"{value:.4g}") for name, value in metrics.items()
                }
                for backend, metrics in found.items()
            },
            "missed": missed,
        },
    )
    if missed:
        raise SystemExit("red: " + "; ".join(f"{what} {why}" for what, why in missed.items()))


def _shown(value: float | None, threshold: Threshold) -> str:
    said = "-" if value is None else f"{value:.3g}"
    return said if threshold.kept(value) else f"{said} RED"


if __name__ == "__main__":
    main()
