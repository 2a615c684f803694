"""Measurements of steps as columns: what a chart draws."""

from collections.abc import Collection, Sequence

from api.presenting import as_time
from ratchet.spec.views import MetricList
from ratchet.store import StepRecord
from ratchet.store.records import STEP_MEASUREMENTS


def metric_list(run: str, steps: Sequence[StepRecord], wanted: Collection[str], points: int) -> MetricList:
    """Columns of the wanted metrics (none named: all), thinned to at most so many steps; the last stays."""
    measured = sorted({name for step in steps for name in step.metrics} - {*STEP_MEASUREMENTS, *_DERIVED})
    names = [*STEP_MEASUREMENTS, *_DERIVED, *measured]
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
    if name in STEP_MEASUREMENTS:
        return getattr(step, STEP_MEASUREMENTS[name])
    if name == "seconds":
        return step.finished_at - step.started_at
    if name == "tokens_per_second":
        # What came from the journal was generated at another time.
        measured = step.rollout_engine_s > 0 and not step.replayed_groups
        return step.num_tokens / step.rollout_engine_s if measured else None
    return step.metrics.get(name)
