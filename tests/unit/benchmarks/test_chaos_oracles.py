"""Each oracle turns red, by its name, for what it is there to see, and only then."""

import dataclasses
from collections import Counter
from typing import Any

import pytest

from benchmarks.chaos.evidence import Evidence
from benchmarks.chaos.history import Done, RunHistory
from benchmarks.chaos.oracles import judge, regenerated_groups
from ratchet.sessions import receipt_book
from ratchet.sessions.receipt_book import ReceiptBook
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import SnapshotArgs
from ratchet.spec.ranges import to_ranges
from ratchet.spec.receipts import Recovered, SnapshotReceipt, TrainReceipt
from ratchet.spec.state import RunPhase
from ratchet.store.records import RunRecord, StepRecord

STEPS, PROMPTS = 3, 2
VERSION = WeightVersion(incarnation=1, step=0, digest="00")


def trained(step: int, count: int, incarnation: int = 1, **more: Any) -> Done:
    op = OpId(run="r", incarnation=incarnation, step=step, kind=OpKind.TRAIN_STEP)
    receipt = TrainReceipt(
        op=str(op),
        version=VERSION,
        cursor_start=(step - 1) * PROMPTS,
        cursor_end=step * PROMPTS,
        num_groups=PROMPTS,
        zero_advantage_groups=0,
        num_tokens=1,
        optimizer_steps=count,
        metrics={},
        **more,
    )
    return Done(op, 0.0, float(step), receipt)


def step_row(step: int, **other: Any) -> StepRecord:
    first, last = (step - 1) * PROMPTS, step * PROMPTS
    said: dict[str, Any] = {"step": step, "cursor_start": first, "cursor_end": last, "num_groups": PROMPTS}
    return StepRecord.model_construct(incarnation=1, **(said | other))


def sound() -> Evidence:
    """Of a run that nobody could find fault with."""
    return Evidence(
        run=RunRecord.model_construct(id="r", phase=RunPhase.COMPLETED, step=STEPS, fault=None),
        steps=STEPS,
        prompts=PROMPTS,
        digest="d0",
        expected_digest="d0",
        path=[step_row(step) for step in range(1, STEPS + 1)],
        journal=Counter(range(STEPS * PROMPTS)),
        history=RunHistory([trained(step, step) for step in range(1, STEPS + 1)]),
        incidents=[],
        blows=[],
    )


def streamed(*steps: tuple[int, ...], evicted: tuple[int, ...] = (), **other: Any) -> dict[str, Any]:
    """Of a run whose steps were made of these."""
    receipts = {}
    for step, keys in enumerate(steps, 1):
        done = trained(step, step, trained=to_ranges(keys), evicted=to_ranges(evicted if step == 1 else ()))
        metrics = {"staleness_max": float(other.get("staleness", 1))}
        receipts[1, step] = done.receipt.model_copy(update={"metrics": metrics})
    over = other.get("over", {key for keys in (*steps, evicted) for key in keys})
    journal = Counter(range(other.get("journaled", 7)))
    return {"streamed": receipts, "over": over, "max_staleness": 1, "journal": journal}


def history(*operations: Done) -> dict[str, Any]:
    return {"history": RunHistory(list(operations))}


def test_a_sound_run_satisfies_all_of_them() -> None:
    assert judge(sound()) == {}


@pytest.mark.parametrize(
    "change",
    [
        streamed((2, 3), (0, 4), (1, 5)),
        streamed((2, 3), (0, 4), (6, 5), evicted=(1,)),
        streamed((2, 3), (0, 1), (4, 5), journaled=9),  # the last ones are for whoever trains on
    ],
)
def test_a_sound_run_whose_steps_take_what_is_finished_does_too(change: dict[str, Any]) -> None:
    assert judge(dataclasses.replace(sound(), **change)) == {}


@pytest.mark.parametrize(
    ("oracle", "change"),
    [
        ("ledger", streamed((2, 3), (0, 2), (1, 5))),
        ("ledger", streamed((2, 3), (0, 4), (1,))),
        ("ledger", streamed((2, 3), (0, 4), (1, 8))),
        ("ledger", streamed((2, 3), (0, 4), (1, 5), evicted=(4,))),
        ("ledger", streamed((2, 3), (0, 4), (1, 5), over={0, 1, 2, 3, 4, 5, 6})),
        ("ledger", streamed((2, 3), (0, 4), (1, 5), over={0, 1, 2, 3, 4})),
        ("staleness", streamed((2, 3), (0, 4), (1, 5), staleness=2)),
        ("hit", {"missed": ["kill trainer at backward: nobody came there"]}),
        ("ended", {"run": RunRecord.model_construct(id="r", phase=RunPhase.FAILED, step=2, fault=None)}),
        ("ended", {"run": None}),
        ("digest", {"digest": None}),
        ("digest", {"digest": "d1"}),
        ("orphans", {"leftovers": ["shared memory ratchet-x"]}),
        ("agreement", {"disagreements": ["steps 1-2: loss is 1.0 in the store, 2.0 in the history"]}),
        ("nobody", {"history": RunHistory(sound().history.operations, actions=["an update"])}),
        ("regenerated", {"journal": Counter([*range(STEPS * PROMPTS), 3])}),
        ("ledger", {"journal": Counter(range(STEPS * PROMPTS + 1))}),
        ("ledger", {"journal": Counter(range(STEPS * PROMPTS - 1))}),
        ("ledger", {"path": [step_row(1), step_row(2, cursor_start=1), step_row(3)]}),
        ("ledger", {"path": [step_row(1), step_row(2, num_groups=1), step_row(3)]}),
        ("steps", {"path": [step_row(1), step_row(2), step_row(2, cursor_start=4, cursor_end=6)]}),
        ("steps", history(trained(1, 1), trained(2, 3), trained(3, 4))),
        ("steps", history(trained(1, 1), trained(1, 3, 2), trained(2, 4, 2), trained(3, 5, 2))),
        ("steps", history(trained(1, 1), trained(2, 2, starts=2), trained(3, 3))),
    ],
)
def test_what_is_wrong_is_seen_by_the_oracle_for_it(oracle: str, change: dict[str, Any]) -> None:
    assert list(judge(dataclasses.replace(sound(), **change))) == [oracle]


@pytest.mark.parametrize(
    "operations",
    [
        # A new trainer counts from one; one that lives on goes on, and has a receipt for every step.
        [trained(1, 1), trained(2, 2), trained(2, 1, 2), trained(3, 2, 2)],
        [trained(1, 1), trained(2, 2), trained(2, 3, 2), trained(3, 4, 2)],
        [
            trained(1, 1),
            trained(
                2,
                2,
                starts=2,
                recovered=(Recovered(role="data-plane", cause="gone", detected_at=0.0, seconds=1.0),),
            ),
            trained(3, 3),
        ],
    ],
)
def test_recoveries_are_no_defects(operations: list[Done]) -> None:
    assert judge(dataclasses.replace(sound(), history=RunHistory(operations))) == {}


def test_groups_that_were_generated_again_are_named() -> None:
    assert regenerated_groups(dataclasses.replace(sound(), journal=Counter([0, 0, 1, 2, 2]))) == [0, 2]


@pytest.mark.parametrize(("kept", "expected"), [(receipt_book.KEPT, 1), (0, 2)])
def test_without_joining_an_effect_happens_twice(
    kept: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_book, "KEPT", kept)
    book, effects = ReceiptBook(), []
    op = OpId(run="r", incarnation=1, step=1, kind=OpKind.SNAPSHOT)
    args = SnapshotArgs(op=op, version=VERSION, cursor=2)

    def effect() -> SnapshotReceipt:
        effects.append(1)
        return SnapshotReceipt(op=str(op), version=VERSION, num_bytes=1)

    assert book.once(args, effect) == book.once(args, effect)
    assert len(effects) == expected
    assert len(book.entries()) == (1 if kept else 0)
