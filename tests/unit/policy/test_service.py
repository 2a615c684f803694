"""The trainer's side of a session, over a real trainer: what happens once happens once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.data_plane.blocking import BlockingDataPlane
from ratchet.policy.service import TrainerService
from ratchet.rollouts.columns import to_columns
from ratchet.rollouts.partition import PARTITION, TrainPartition
from ratchet.spec.faults import ActorLost
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import CommitArgs, RefitArgs, RestoreArgs, SnapshotArgs, TrainArgs


def op(kind: OpKind, step: int) -> OpId:
    return OpId(run="r", incarnation=1, step=step, kind=kind)


@pytest.fixture
def plane(make_plane: Callable[[], BlockingDataPlane]) -> BlockingDataPlane:
    return make_plane()


@pytest.fixture
def service(make_spec, plane: BlockingDataPlane, tmp_path: Path) -> TrainerService:
    return TrainerService(
        make_spec(), "r", Home(tmp_path), TrainPartition(plane, "trainer-0"), "trainer-0", 1
    )


@pytest.fixture
def base(service: TrainerService, model_folder: Path) -> WeightVersion:
    return service.restore(RestoreArgs(op=op(OpKind.RESTORE, 0)), str(model_folder)).version


@pytest.fixture
def step(plane: BlockingDataPlane, make_groups):
    """Arguments of a train step from `version`, with three groups that it had sampled in the data plane."""

    def step_(number: int, version: WeightVersion) -> TrainArgs:
        first = 3 * (number - 1)
        groups = make_groups()[first : first + 3]
        sampled = [replace(each, version_start=version, version_end=version) for each in groups]
        plane.put(PARTITION, [to_columns(group) for group in sampled])
        return TrainArgs(
            op=op(OpKind.TRAIN_STEP, number), cursor_start=first, cursor_end=first + 3, version=version
        )

    return step_


def test_a_fault_behind_the_point_of_no_return_never_trains_the_step_twice(
    service: TrainerService, base: WeightVersion, step, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = service._trainer.digest

    def no_room() -> str:
        monkeypatch.setattr(service._trainer, "digest", digest)
        raise MemoryError("no room for the copy")

    monkeypatch.setattr(service._trainer, "digest", no_room)
    with pytest.raises(MemoryError):
        service.train_step(step(1, base))
    moved = service._trainer.digest()
    with pytest.raises(ActorLost, match="restore"):  # asked for again, as an infrastructure fault is
        service.train_step(step(1, base))
    assert service._trainer.digest() == moved


def test_a_step_that_is_asked_for_again_is_answered_and_not_trained(
    service: TrainerService, base: WeightVersion, step
) -> None:
    first = service.train_step(step(1, base))
    assert service.train_step(step(1, base)) == first
    assert first.optimizer_steps == 1


def test_only_the_newest_snapshot_is_kept_however_often_storing_fails(
    service: TrainerService, base: WeightVersion, step
) -> None:
    first = service.train_step(step(1, base)).version
    service.snapshot(SnapshotArgs(op=op(OpKind.SNAPSHOT, 1), version=first, cursor=3))
    second = service.train_step(step(2, first)).version
    service.snapshot(SnapshotArgs(op=op(OpKind.SNAPSHOT, 2), version=second, cursor=6))
    assert list(service._snapshots) == [second]
    with pytest.raises(ActorLost, match=r"the snapshot of .* is gone"):
        service.commit_checkpoint(
            CommitArgs(op=op(OpKind.COMMIT_CHECKPOINT, 1), version=first, cursor=3, hf_export=False)
        )


def test_weights_that_have_not_moved_are_staged_once(
    service: TrainerService, base: WeightVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = dict.fromkeys(service._trainer.weights(), "float32")
    one = service.stage_refit(RefitArgs(op=op(OpKind.REFIT, 0), version=base), dtypes)
    monkeypatch.setattr(service._sender, "stage", None)
    assert service.stage_refit(RefitArgs(op=op(OpKind.REFIT, 0), version=base), dtypes) == one
    monkeypatch.undo()
    service._sender.close()  # as if it had been swept away
    again = service.stage_refit(RefitArgs(op=op(OpKind.REFIT, 0), version=base), dtypes)
    assert (again.digest, service._sender.holds(again)) == (one.digest, True)
    service._sender.close()
