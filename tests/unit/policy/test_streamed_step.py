"""A train step that takes its groups in as they are finished, over a real trainer and data plane."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.data_plane.blocking import BlockingDataPlane
from ratchet.policy.service import TrainerService
from ratchet.rollouts.partition import TrainPartition
from ratchet.sessions.losses import GroupsMissing
from ratchet.spec.faults import Cancelled
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import RefitArgs, RestoreArgs, TrainArgs
from ratchet.spec.ranges import keys_of

PROMPTS = 2
"""Groups a step; the fixture's spec has six, of which so many are wanted here."""


def op(kind: OpKind, step: int) -> OpId:
    return OpId(run="r", incarnation=1, step=step, kind=kind)


class Bench:
    def __init__(
        self, service: TrainerService, base: WeightVersion, plane: BlockingDataPlane, groups
    ) -> None:
        self.service = service
        self.base = base
        self.plane = plane
        self.partition = TrainPartition(plane, "generator-0")
        self._groups = groups

    def args(self, step: int, version: WeightVersion, **more) -> TrainArgs:
        told = {"cursor_start": 0, "cursor_end": 12, "wanted": PROMPTS, "max_staleness": 1} | more
        return TrainArgs(op=op(OpKind.TRAIN_STEP, step), version=version, **told)

    def finish(self, key: int, start: WeightVersion | None = None, end: WeightVersion | None = None) -> None:
        start = start or self.base
        self.partition.put(
            [replace(self._groups[key % 6], key=key, version_start=start, version_end=end or start)]
        )


@pytest.fixture
def bench(make_spec, make_groups, make_plane: Callable[[], BlockingDataPlane], model_folder: Path, tmp_path):
    def made(sampler: str = "ready_first", **asynchronous) -> Bench:
        asynchronous = {"sampler": sampler, "refit": "keep", "max_staleness": 1} | asynchronous
        spec, plane = make_spec(asynchronous=asynchronous), make_plane()
        service = TrainerService(
            spec, "r", Home(tmp_path), TrainPartition(plane, "trainer-0"), "trainer-0", 1
        )
        base = service.restore(RestoreArgs(op=op(OpKind.RESTORE, 0)), str(model_folder)).version
        return Bench(service, base, plane, make_groups())

    return made


def later(*work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        for each in work:
            time.sleep(0.1)
            each()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_groups_are_taken_in_while_others_are_still_sampled(bench) -> None:
    b = bench()
    b.finish(3)
    b.partition.begin(0, 0)
    thread = later(lambda: b.finish(1))
    receipt = b.service.train_step(b.args(1, b.base))
    thread.join()
    assert list(keys_of(receipt.trained)) == [1, 3]
    assert (receipt.cursor_start, receipt.cursor_end, receipt.num_groups) == (1, 4, 2)
    assert receipt.batch is not None
    assert receipt.batch.num_samples == 8
    assert [group.key for group in b.partition.look()] == [0]  # acknowledged, and the one that is sampled


def test_the_sampler_and_not_the_clock_decides_where_it_is_in_order(bench) -> None:
    b = bench("in_order")
    b.finish(2)
    b.finish(1)
    thread = later(lambda: b.finish(0))
    receipt = b.service.train_step(b.args(1, b.base))
    thread.join()
    assert list(keys_of(receipt.trained)) == [0, 1]


def test_a_prompt_that_was_given_up_is_not_waited_for(bench) -> None:
    b = bench("in_order")
    b.partition.give_up(0)
    b.finish(1)
    b.finish(2)
    receipt = b.service.train_step(b.args(1, b.base))
    assert (list(keys_of(receipt.trained)), list(keys_of(receipt.given_up))) == ([1, 2], [0])


def test_no_group_is_trained_that_is_older_than_the_window(bench) -> None:
    b = bench("windowed")
    for key in (0, 1):
        b.finish(key)
    one = b.service.train_step(b.args(1, b.base)).version
    for key in (2, 3):
        b.finish(key, one)
    two = b.service.train_step(b.args(2, one, cursor_start=2)).version
    b.finish(4)  # of the base, two steps ago
    for key in (5, 6):
        b.finish(key, one, two)
    receipt = b.service.train_step(b.args(3, two, cursor_start=4))
    assert (list(keys_of(receipt.trained)), list(keys_of(receipt.evicted))) == ([5, 6], [4])
    told = {"staleness_max": 1.0, "staleness_min": 1.0, "mixed_groups": 2.0, "evicted_groups": 1.0}
    assert receipt.metrics.items() >= told.items()
    b.finish(4)  # as if its sampling had gone on
    assert b.partition.look() == []


def test_what_the_run_is_done_with_is_thrown_away_wherever_it_turns_up(bench) -> None:
    b = bench()
    for key in range(6):
        b.finish(key)
    receipt = b.service.train_step(b.args(1, b.base, cursor_start=1, finished=((2, 4),)))
    assert list(keys_of(receipt.trained)) == [1, 4]
    assert [group.key for group in b.partition.look()] == [5]


def test_a_step_that_waits_can_be_cancelled_and_has_changed_nothing(bench) -> None:
    b = bench()
    b.finish(0)
    args = b.args(1, b.base)
    thread = later(lambda: b.service.cancel(args.op))
    with pytest.raises(Cancelled, match="1 groups taken in"):
        b.service.train_step(args)
    thread.join()
    assert b.service.position() == b.base
    assert b.service._trainer.digest() == b.base.digest
    b.finish(1)
    assert list(keys_of(b.service.train_step(b.args(2, b.base)).trained)) == [0, 1]


def test_weights_can_be_staged_while_a_step_waits(bench) -> None:
    """Or a generator that was lost meanwhile would wait for weights, and the step for the generator."""
    b = bench()
    b.finish(0)
    dtypes = dict.fromkeys(b.service._trainer.weights(), "float32")
    staged = []

    def stage() -> None:
        staged.append(b.service.stage_refit(RefitArgs(op=op(OpKind.REFIT, 0), version=b.base), dtypes))

    thread = later(stage, lambda: b.finish(1))
    b.service.train_step(b.args(1, b.base))
    thread.join()
    assert staged[0].version == b.base
    b.service._sender.close()


def test_a_plane_that_was_replaced_is_not_taken_for_one_that_has_all(bench) -> None:
    b = bench()
    for key in range(4):
        b.finish(key)
    one = b.service.train_step(b.args(1, b.base)).version
    b.plane.life += 1
    with pytest.raises(GroupsMissing, match="replaced"):
        b.service.train_step(b.args(2, one, cursor_start=2))
    assert list(keys_of(b.service.train_step(b.args(2, one, cursor_start=2)).trained)) == [2, 3]


def test_it_trains_in_portions_of_the_size_that_is_asked_for(bench, monkeypatch) -> None:
    b = bench(min_groups_to_train=2)
    sizes: list[int] = []
    add = b.service._trainer.add

    def counted(groups, crossed) -> None:
        sizes.append(len(groups))
        add(groups, crossed)

    monkeypatch.setattr(b.service._trainer, "add", counted)
    b.finish(0)
    thread = later(lambda: b.finish(1))
    b.service.train_step(b.args(1, b.base))
    thread.join()
    assert sizes == [2]
