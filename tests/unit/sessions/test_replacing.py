"""A generator or a data plane that is lost is made good under the operation that met the loss."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.sessions.conductor import Conductor
from ratchet.sessions.executor import EngineExecutor
from ratchet.sessions.losses import GroupsMissing, WeightsMissing
from ratchet.sessions.replacing import MAX_LOSSES
from ratchet.spec.faults import ActorLost, RatchetError, Unavailable
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.loading import load_spec
from ratchet.spec.operations import (
    AnyArgs,
    EvaluateArgs,
    OpState,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    TrainArgs,
)
from ratchet.spec.receipts import AnyReceipt, EvaluateReceipt, RefitReceipt, RestoreReceipt, TrainReceipt

HEAD = WeightVersion(incarnation=1, step=4, digest="d")
GENERATOR_GONE = ActorLost("the generator is gone", role="generator")
PLANE_GONE = Unavailable("the data-plane is gone", role="data-plane")
TRAINER_GONE = ActorLost("the trainer is gone", role="trainer")


def op(kind: OpKind, step: int = 5) -> OpId:
    return OpId(run="r", incarnation=1, step=step, kind=kind)


EVALUATE = EvaluateArgs(op=op(OpKind.EVALUATE, 4), version=HEAD, num_problems=8)
TRAIN = TrainArgs(op=op(OpKind.TRAIN_STEP), cursor_start=16, cursor_end=20, version=HEAD)
REFIT = RefitArgs(op=op(OpKind.REFIT, 4), version=HEAD)
RESTORE = RestoreArgs(op=op(OpKind.RESTORE, 4))


class Session:
    """All three engines: a diary of what was asked of them, and losses to come."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.losses: dict[str, list[RatchetError]] = {}

    def note(self, what: str) -> None:
        self.diary.append(what)
        if waiting := self.losses.get(what.partition(" ")[0]):
            raise waiting.pop(0)


class Trainer:
    def __init__(self, session: Session) -> None:
        self._note = session.note

    async def end(self, reason: str) -> None:
        self._note("trainer.end")

    async def renew(self) -> None:
        self._note("trainer.renew")

    async def prepare_model(self) -> str:
        return "model"

    async def restore(self, args: RestoreArgs, model_folder: str) -> AnyReceipt:
        self._note("restore")
        return RestoreReceipt(
            op=str(args.op), version=HEAD, checkpoint=None, num_parameters=1, model_digest="m"
        )

    async def train_step(self, args: TrainArgs) -> AnyReceipt:
        self._note("train_step")
        return TrainReceipt(
            op=str(args.op),
            version=HEAD,
            cursor_start=args.cursor_start,
            cursor_end=args.cursor_end,
            num_groups=4,
            zero_advantage_groups=0,
            num_tokens=1,
            optimizer_steps=1,
            metrics={},
        )

    async def stage_refit(self, args: RefitArgs, wire_dtypes: dict[str, str]) -> Any:
        self._note(f"stage_refit {args.version}")

    async def snapshot(self, args: Any) -> AnyReceipt:
        raise AssertionError

    async def commit_checkpoint(self, args: Any) -> AnyReceipt:
        raise AssertionError

    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return []


class Generator:
    def __init__(self, session: Session) -> None:
        self._note = session.note

    async def end(self, reason: str) -> None:
        self._note("generator.end")

    async def renew(self) -> None:
        self._note("generator.renew")

    async def open(self, model_folder: str, incarnation: int) -> dict[str, str]:
        self._note("generator.open")
        return {"w": "float32"}

    async def refit(self, args: RefitArgs, manifest: Any) -> AnyReceipt:
        self._note(f"refit {args.op}")
        return RefitReceipt(
            op=str(args.op), version=args.version, mover="ipc", num_tensors=1, num_bytes=4, wire_digest="x"
        )

    async def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> Any:
        raise AssertionError

    async def refill(self, keys: Sequence[int]) -> None:
        self._note(f"refill {list(keys)}")

    async def evaluate(self, args: EvaluateArgs) -> AnyReceipt:
        self._note("evaluate")
        return EvaluateReceipt(
            op=str(args.op), version=HEAD, num_problems=8, accuracy=1.0, reward_mean=1.0, length_mean=1.0
        )

    async def cancel(self, op: OpId) -> None:
        raise AssertionError

    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return []


class Plane:
    def __init__(self, session: Session) -> None:
        self._note = session.note

    async def end(self, reason: str) -> None:
        self._note("plane.end")

    async def renew(self) -> None:
        self._note("plane.renew")

    async def clear(self) -> None:
        self._note("clear")


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def executor(session: Session) -> EngineExecutor:
    spec = load_spec(Path(__file__).parents[3] / "recipes" / "tiny-addition.yaml")
    return EngineExecutor(spec, Trainer(session), Generator(session), Plane(session))


async def carry_out(executor: EngineExecutor, args: AnyArgs) -> AnyReceipt:
    return await executor.execute(args, lambda _: None, asyncio.Event())


async def test_a_lost_generator_serves_again_after_a_refit_only(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["evaluate"] = [GENERATOR_GONE]
    receipt = await carry_out(executor, EVALUATE)
    assert session.diary == [
        "evaluate",
        "generator.renew",
        "generator.open",
        f"stage_refit {HEAD}",
        "refit r/1/4/refit",
        "evaluate",
    ]
    (recovered,) = receipt.recovered
    assert (recovered.role, recovered.cause) == ("generator", "the generator is gone")


async def test_a_generator_without_the_weights_is_refitted_and_not_replaced(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["evaluate"] = [WeightsMissing("it holds weights of no version", role="generator")]
    await carry_out(executor, EVALUATE)
    assert "generator.renew" not in session.diary
    assert session.diary[-2:] == ["refit r/1/4/refit", "evaluate"]


async def test_a_lost_data_plane_is_refilled_with_what_the_step_trains_on(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["train_step"] = [PLANE_GONE]
    receipt = await carry_out(executor, TRAIN)
    assert session.diary == ["train_step", "plane.renew", "refill [16, 17, 18, 19]", "train_step"]
    assert [each.role for each in receipt.recovered] == ["data-plane"]


async def test_a_data_plane_that_only_lacks_groups_is_refilled_and_not_replaced(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["train_step"] = [GroupsMissing("group 17 is not there", role="data-plane")]
    await carry_out(executor, TRAIN)
    assert session.diary == ["train_step", "refill [16, 17, 18, 19]", "train_step"]


async def test_a_loss_during_the_replacement_is_made_good_too(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses |= {"train_step": [PLANE_GONE], "refill": [GENERATOR_GONE, PLANE_GONE]}
    receipt = await carry_out(executor, TRAIN)
    assert session.diary[-1] == "train_step"
    assert receipt.kind == "train_step"


async def test_a_generator_lost_in_a_refit_gets_that_refit(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["refit"] = [GENERATOR_GONE]
    await carry_out(executor, REFIT)
    assert session.diary[-3:] == ["generator.open", f"stage_refit {HEAD}", "refit r/1/4/refit"]


async def test_a_lost_trainer_is_the_runs_business_until_it_restores(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["train_step"] = [TRAINER_GONE]
    with pytest.raises(ActorLost):
        await carry_out(executor, TRAIN)
    assert session.diary == ["train_step"]

    session.losses["restore"] = [TRAINER_GONE]
    await carry_out(executor, RESTORE)
    assert session.diary.count("trainer.renew") == 1
    assert session.diary[-1] == "clear", "what was put before the restore must not train"


async def test_one_operation_gets_over_so_many_losses_and_no_more(
    executor: EngineExecutor, session: Session
) -> None:
    session.losses["evaluate"] = [GENERATOR_GONE] * (MAX_LOSSES + 1)
    with pytest.raises(ActorLost):
        await carry_out(executor, EVALUATE)
    assert session.diary.count("generator.renew") == MAX_LOSSES


async def test_a_conductor_that_takes_over_in_a_restore_goes_through_all_of_it(
    executor: EngineExecutor, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = await carry_out(executor, RESTORE)

    async def receipts(_: Trainer) -> list[tuple[str, str, dict[str, object]]]:
        return [(str(RESTORE.op), RESTORE.digest(), receipt.model_dump(mode="json"))]

    monkeypatch.setattr(Trainer, "receipts", receipts)
    session.diary.clear()
    heir = Conductor(executor)
    await heir.recover()
    await heir.submit(RESTORE)
    assert (await heir.poll(RESTORE.op, 5)).state is OpState.DONE
    assert session.diary[-1] == "clear", "the dead one may not have come so far"
