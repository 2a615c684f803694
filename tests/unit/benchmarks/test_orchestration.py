"""What counts as overhead, and that the null run is one that Ratchet takes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.orchestration import null_spec, step_overheads, write_null_model
from ratchet.preflight import check_runnable
from ratchet.spec.views import StepView


def step(number: int, started_s: float, engines_s: tuple[float, float, float]) -> StepView:
    began = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=started_s)
    rollout_s, train_s, refit_s = engines_s
    return StepView(
        step=number,
        incarnation=1,
        version="1.1.d",
        started_at=began,
        finished_at=began,
        reward_mean=0.0,
        accuracy=0.0,
        length_mean=1.0,
        num_tokens=2,
        num_groups=1,
        zero_advantage_groups=1,
        rollout_s=rollout_s,
        train_s=train_s,
        refit_s=refit_s,
        metrics={},
    )


def test_overhead_is_the_period_less_the_engines() -> None:
    steps = [
        step(1, 0.000, (0.010, 0.020, 0.030)),
        step(2, 0.100, (0.001, 0.001, 0.001)),
        step(3, 0.150, (1.0, 1.0, 1.0)),  # its end is not known
    ]
    assert step_overheads(steps) == pytest.approx([40.0, 47.0])


def test_the_null_run_passes_preflight(tmp_path: Path) -> None:
    spec = null_spec(write_null_model(tmp_path / "null"), steps=200)
    check_runnable(spec)
    assert spec.grpo.max_num_steps > 200  # a warm-up, and the period of the last one, need more
