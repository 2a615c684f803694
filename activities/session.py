"""Session activities: attach to operations. They hold nothing; a retry, wherever it runs, joins."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ratchet.sessions.attach import OperationsClient, attach
from ratchet.spec import deadlines, names
from ratchet.spec.control import CancelRequest
from ratchet.spec.faults import RESTARTABLE, Fault, FaultKind, RatchetError
from ratchet.spec.ids import OpId
from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    OpAnswer,
    OpState,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    SnapshotArgs,
    TrainArgs,
)
from ratchet.spec.receipts import (
    CheckpointReceipt,
    EvaluateReceipt,
    Receipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    SnapshotReceipt,
    TrainReceipt,
)

RETRYABLE = RESTARTABLE - {FaultKind.STORAGE} | {FaultKind.DRIVER_LOST}
"""Faults after which asking again at once can help: the operation starts again, or is joined. A full disk
takes a person; the run itself asks again, later."""

ReceiptT = TypeVar("ReceiptT", bound=Receipt)


def as_application_error(fault: Fault, *, starts: int = 0, attempt: int = 1) -> ApplicationError:
    """The Temporal failure that carries a fault; its type is the fault's kind."""
    retryable = fault.kind in RETRYABLE and starts < deadlines.MAX_STARTS
    pause = min(deadlines.RETRY_INTERVAL * 2.0 ** min(attempt, 10), deadlines.RETRY_LONGEST)
    return ApplicationError(
        fault.message,
        fault.model_dump(mode="json"),
        type=fault.kind.value,
        non_retryable=not retryable,
        next_retry_delay=timedelta(seconds=pause) if retryable else None,
    )


class SessionActivities:
    """One activity per kind of operation, so that the Temporal UI names what happens."""

    def __init__(self, client: OperationsClient) -> None:
        self._client = client

    @activity.defn
    async def restore(self, args: RestoreArgs) -> RestoreReceipt:
        return await self._receipt(args, RestoreReceipt)

    @activity.defn
    async def rollout_batch(self, args: RolloutArgs) -> RolloutReceipt:
        return await self._receipt(args, RolloutReceipt)

    @activity.defn
    async def train_step(self, args: TrainArgs) -> TrainReceipt:
        return await self._receipt(args, TrainReceipt)

    @activity.defn
    async def refit(self, args: RefitArgs) -> RefitReceipt:
        return await self._receipt(args, RefitReceipt)

    @activity.defn
    async def snapshot(self, args: SnapshotArgs) -> SnapshotReceipt:
        return await self._receipt(args, SnapshotReceipt)

    @activity.defn
    async def commit_checkpoint(self, args: CommitArgs) -> CheckpointReceipt:
        return await self._receipt(args, CheckpointReceipt)

    @activity.defn
    async def evaluate(self, args: EvaluateArgs) -> EvaluateReceipt:
        return await self._receipt(args, EvaluateReceipt)

    @activity.defn(name=names.CANCEL_OPERATION)
    async def cancel_operation(self, request: CancelRequest) -> None:
        try:
            await self._client.cancel(OpId.parse(request.op))
        except RatchetError as error:
            raise as_application_error(error.fault(), attempt=activity.info().attempt) from error

    async def _receipt(self, args: AnyArgs, expected: type[ReceiptT]) -> ReceiptT:
        attempt = activity.info().attempt
        try:
            answer = await attach(self._client, args, _heartbeat())
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.not_found:
                # The workflow continued as new, and its successor joins the operation from an attempt of
                # its own. Nobody waits for this one, so it ends without a word.
                activity.raise_complete_async()
            raise
        except RatchetError as error:
            raise as_application_error(error.fault(), attempt=attempt) from error
        if answer.state is OpState.DONE and isinstance(answer.receipt, expected):
            return answer.receipt
        fault = answer.fault or Fault(
            kind=FaultKind.INTERNAL, message=f"{args.op} ended {answer.state} without a fault"
        )
        raise as_application_error(fault, starts=answer.starts, attempt=attempt)

    def all(self) -> list[Callable[..., Any]]:
        """For the worker's `activities`."""
        return [
            self.restore,
            self.rollout_batch,
            self.train_step,
            self.refit,
            self.snapshot,
            self.commit_checkpoint,
            self.evaluate,
            self.cancel_operation,
        ]


def _heartbeat() -> Callable[[OpAnswer], None]:
    """`progressed_at`: since when the operation has been this far, over all attempts (epoch seconds)."""
    details = activity.info().heartbeat_details
    last: dict[str, Any] = details[0] if details else {}
    progress, progressed_at = last.get("progress"), float(last.get("progressed_at", time.time()))

    def beat(answer: OpAnswer) -> None:
        nonlocal progress, progressed_at
        if answer.progress != progress:
            progress, progressed_at = answer.progress, time.time()
        activity.heartbeat(
            {
                "progress": progress,
                "progressed_at": progressed_at,
                "submits": answer.submits,
                "starts": answer.starts,
            }
        )

    return beat
