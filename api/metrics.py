"""Measurements of steps as columns: what a chart draws."""

from collections.abc import Collection, Sequence

from api.presenting import as_time
from ratchet.spec.views import MetricList
from ratchet.store import StepRecord

_MEASURED = {
    "reward_mean": "reward_mean",
    "reward_std": "reward_std",
    "accuracy": "accuracy",
    "length_mean": "length_mean",
    "truncated_fraction": "truncated_fraction",
    "num_tokens": "num_tokens",
    "replayed_groups": "replayed_groups",
    "zero_advantage_groups": "zero_advantage_groups",
    "rollout_s": "rollout_engine_s",
    "train_s": "train_engine_s",
    "refit_s": "refit_engine_s",
}
"""Names of measurements that every step has, and their columns."""


def metric_list(run: str, steps: Sequence[StepRecord], wanted: Collection[str], points: int) -> MetricList:
    """Columns of the wanted metrics (none named: all), thinned to at most so many steps; the last stays."""
    measured = sorted({name for step in steps for name in step.metrics} - {*_MEASURED, *_DERIVED})
    names = [*_MEASURED, *_DERIVED, *measured]
    shown = [name for name in names if not wanted or name in wanted]
    stride = -(-len(steps) // points)
    kept = list(steps[::-1][::stride])[::-1] if steps else []
    return MetricList(
        run=run,
        names=names,
        steps=[step.step for step in kept],
        incarnations=[step.incarnation for step in kept],
        finished_at=[as_time(step.finished_at) for step in kept],
        series={name: [_value(step, name) for step in kept] for name in shown},
    )


_DERIVED = ("seconds", "tokens_per_second")


def _value(step: StepRecord, name: str) -> float | None:
    if name in _MEASURED:
        return getattr(step, _MEASURED[name])
    if name == "seconds":
        return step.finished_at - step.started_at
    if name == "tokens_per_second":
        # What came from the journal was generated at another time.
        measured = step.rollout_engine_s > 0 and not step.replayed_groups
        return step.num_tokens / step.rollout_engine_s if measured else None
    return step.metrics.get(name)
