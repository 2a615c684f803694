"""Recovery times are cut where things happened, and what they mean for long steps is plain arithmetic."""

from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.chaos import ettr
from benchmarks.chaos.evidence import Blow
from benchmarks.chaos.history import Done
from benchmarks.chaos.recovery import PARTS, Recovery, first_line, split, worst
from benchmarks.chaos.table import Strike, Victim
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.receipts import SnapshotReceipt

VERSION = WeightVersion(incarnation=1, step=0, digest="00")


def done(kind: OpKind, at: float, scheduled_at: float = 0.0, incarnation: int = 1) -> Done:
    op = OpId(run="r", incarnation=incarnation, step=1, kind=kind)
    return Done(op, scheduled_at, at, SnapshotReceipt(op=str(op), version=VERSION, num_bytes=1))


def blow(victim: Victim, back_at: float | None) -> Blow:
    return Blow(Strike(victim, "backward"), 100.0, 7, back_at=back_at)


def parts(recovery: Recovery | None) -> list[float]:
    assert recovery is not None
    return [round(recovery.part(name), 6) for name in PARTS]


def test_a_restore_is_cut_into_all_four_parts() -> None:
    operations = [
        done(OpKind.ROLLOUT_BATCH, 99.0),
        done(OpKind.ROLLOUT_BATCH, 100.5),  # it did not need the trainer, and the run goes back behind it
        done(OpKind.RESTORE, 110.0, incarnation=2),
        done(OpKind.REFIT, 111.0),
        done(OpKind.ROLLOUT_BATCH, 111.5),
    ]
    recovery = split(blow(Victim.TRAINER, 107.0), 102.0, operations, 130.0)
    assert parts(recovery) == [2.0, 5.0, 4.0, 0.5]
    assert recovery is not None
    assert recovery.seconds == recovery.stood_still == pytest.approx(11.5)
    assert recovery.back == pytest.approx(7.0)


def test_a_head_is_provisioned_once_there_is_a_trainer_in_it() -> None:
    struck = blow(Victim.HEAD, 102.0)
    struck.rebuilt_at = 108.0
    operations = [done(OpKind.RESTORE, 109.0), done(OpKind.ROLLOUT_BATCH, 110.0)]
    recovery = split(struck, 100.5, operations, None)
    assert parts(recovery) == [0.5, 7.5, 1.0, 1.0]
    assert recovery is not None
    assert recovery.back == pytest.approx(2.0)


def test_a_run_that_goes_on_before_its_victim_is_back_stood_still_no_longer() -> None:
    recovery = split(blow(Victim.API, 105.0), 104.0, [done(OpKind.TRAIN_STEP, 101.0, 100.5)], None)
    assert parts(recovery) == [1.0, 0.0, 0.0, 0.0]
    assert recovery is not None
    assert recovery.seconds == 0.0  # it counts from when the API was back


def test_an_operation_that_was_under_way_shows_nothing_of_who_orders_the_next() -> None:
    operations = [done(OpKind.ROLLOUT_BATCH, 100.1, 99.0), done(OpKind.TRAIN_STEP, 104.0, 103.0)]
    assert parts(split(blow(Victim.CONTROL_WORKER, 102.5), 100.5, operations, None)) == [0.5, 2.0, 0.0, 1.5]
    assert parts(split(blow(Victim.SESSION_WORKER, None), None, operations, None)) == [0.0, 0.0, 0.0, 0.1]


def test_a_refit_restores_nothing_unless_a_restore_was_before_it() -> None:
    operations = [done(OpKind.REFIT, 103.0), done(OpKind.TRAIN_STEP, 104.0)]
    assert parts(split(blow(Victim.SESSION_HOST, 102.0), 101.0, operations, None)) == [1.0, 1.0, 0.0, 2.0]


def test_after_the_last_operation_the_closed_session_counts() -> None:
    assert parts(split(blow(Victim.TRAINER, None), None, [], 103.0)) == [0.0, 0.0, 0.0, 3.0]
    assert split(blow(Victim.TRAINER, None), None, [], None) is None


def test_the_worst_is_kept_for_every_way_to_strike() -> None:
    strike = Strike(Victim.TRAINER, "backward")
    short, long = Recovery(strike, 0.0, 1.0, 0.0, 0.0), Recovery(strike, 0.0, 2.0, 0.0, 0.0)
    assert worst([short, long, short]) == {"trainer": long}


def test_a_log_says_when_a_loss_was_noticed(tmp_path: Path) -> None:
    log = tmp_path / "supervisor.log"
    log.write_text(
        "2026-01-02 10:00:00,100 WARNING api (pid 5) ended with -9\n"
        "2026-01-02 10:00:03,250 WARNING api (pid 5) ended with -9\n"
    )
    since = datetime(2026, 1, 2, 10, 0, 1).timestamp()
    assert first_line(log, r"api \(pid 5\) ended", since) == pytest.approx(since + 2.25)
    assert first_line(log, "never", since) is None
    assert first_line(tmp_path / "none", "api", since) is None


def test_ettr_counts_ten_failures_in_a_hundred_minutes() -> None:
    recovery = {"control": 8.0, "trainer": 30.0, "generator": 30.0, "head": 40.0}
    # Retrained: half a step of 20 s, and a third of the time half of the one under way. Rolled out again: two
    # thirds of the time half of 40 s.
    retrained, rolled_out = 10.0 + 20.0 / 6.0, 40.0 / 3.0
    lost = 7 * 8.0 + (30.0 + retrained + rolled_out) + (30.0 + rolled_out) + (40.0 + retrained + rolled_out)
    assert ettr.at_60s_steps(recovery) == pytest.approx(6000.0 / (6000.0 + lost))
    assert f"= {ettr.at_60s_steps(recovery):.3f}" in ettr.formula(recovery)
    assert ettr.at_60s_steps(dict.fromkeys(recovery, 0.0)) < 1.0
    assert ettr.of_runs(10.0, [10.0, 30.0]) == 0.5
