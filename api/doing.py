"""What a run does at this moment, in words: what is open, how far it is, and what was tried before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from temporalio.api.enums.v1 import PendingActivityState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.converter import DataConverter

from ratchet.spec import deadlines, names
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.problems import first_line

PICKED_UP_WITHIN = 2.0
"""Seconds that an activity may wait for a worker before anybody is told."""

OPERATIONS = {
    OpKind.RESTORE: ("load the", "restore from"),
    OpKind.ROLLOUT_BATCH: ("roll out prompts",),
    OpKind.TRAIN_STEP: ("train on prompts",),
    OpKind.REFIT: ("move weights",),
    OpKind.SNAPSHOT: ("copy weights",),
    OpKind.COMMIT_CHECKPOINT: ("write the checkpoint",),
    OpKind.EVALUATE: ("evaluate weights",),
}
"""How the workflow's words for an operation begin; what follows are its arguments."""

ERRANDS = {
    names.REGISTER_RUN: "put the run on record",
    names.OPEN_SESSION: "open the session",
    names.PROBE_SESSION: "look after the session",
    names.RESTART_WORKER: "restart the session worker",
    names.CLOSE_SESSION: "close the session",
    names.RECORD: "write down what happened",
    names.CHOOSE_CHECKPOINT: "look for the newest checkpoint",
    names.RETAIN: "delete checkpoints that are not kept",
    names.DIAGNOSE: "look for who is silent",
    names.ADMIT: "ask for a session",
    names.RELEASE: "give the session's place back",
}
_UNREMARKABLE = {
    names.REGISTER_RUN,
    names.RECORD,
    names.RETAIN,
    names.DIAGNOSE,
    names.ADMIT,
    names.RELEASE,
}
"""Told only when they do not go well: the run goes on beside them."""

_TIMEOUTS = {
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: f"nothing was heard of it for {deadlines.HEARTBEAT:g} s",
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "it took too long",
}


@dataclass(frozen=True, slots=True)
class OpenActivity:
    """An activity that has not ended, as Temporal knows it."""

    id: str
    """Of an operation: its OpId."""
    kind: str
    attempt: int = 1
    progress: str = ""
    """Of an operation, from its last heartbeat: "7 of 16 groups"."""
    failure: str = ""
    """Why the attempt before this one failed."""
    waiting: bool = False
    """Nobody has picked it up, though there was time to."""

    @classmethod
    async def read(cls, pending: PendingActivityInfo, converter: DataConverter) -> Self:
        beats: list[Any] = await converter.decode_wrapper(pending.heartbeat_details)
        scheduled = pending.scheduled_time.ToDatetime(UTC)
        unclaimed = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        late = (datetime.now(UTC) - scheduled).total_seconds() > PICKED_UP_WITHIN
        return cls(
            id=pending.activity_id,
            kind=pending.activity_type.name,
            attempt=pending.attempt,
            progress=_progress(beats),
            failure=_reason(pending.last_failure) if pending.HasField("last_failure") else "",
            waiting=unclaimed and late,
        )

    @property
    def operation(self) -> OpId | None:
        try:
            return OpId.parse(self.id)
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """What it is, as far as its id and type say."""
        if op := self.operation:
            return f"step {op.step}: {op.kind.value.replace('_', ' ')}"
        return ERRANDS.get(self.kind, self.kind)

    @property
    def remarks(self) -> str:
        """`(7 of 16 groups) (attempt 3: the session worker is gone)`, or nothing."""
        remarks: list[str] = []
        if self.progress:
            remarks.append(self.progress)
        if self.attempt > 1:
            remarks.append(f"attempt {self.attempt}" + (f": {self.failure}" if self.failure else ""))
        if self.waiting:
            remarks.append("waiting for a worker")
        return "".join(f" ({remark})" for remark in remarks)


def in_words(operations: Sequence[str] | None, activities: Sequence[OpenActivity]) -> list[str]:
    """A line for everything that is open.

    `operations`: the open ones in the workflow's own words, which know more than ids do; None if it did not
    answer, and the ids have to do.
    """
    lines = list(_lines(operations, activities))
    return [line.removeprefix("step 0: ") for line in lines]  # before the first step


def _lines(operations: Sequence[str] | None, activities: Sequence[OpenActivity]) -> Iterator[str]:
    for text in operations or ():
        yield text + next((open.remarks for open in activities if _means(text, open)), "")
    for open in activities:
        if open.operation:
            if operations is None:
                yield open.words + open.remarks
        elif open.kind not in _UNREMARKABLE or open.attempt > 1 or open.waiting:
            yield open.words + open.remarks


def _means(text: str, open: OpenActivity) -> bool:
    """Whether the workflow's words are about this activity."""
    op = open.operation
    step, _, what = text.partition(": ")
    return op is not None and step == f"step {op.step}" and what.startswith(OPERATIONS[op.kind])


def _progress(beats: Sequence[Any]) -> str:
    match beats:
        case [{"progress": str(progress)}]:
            return progress
        case _:
            return ""


def _reason(failure: Failure) -> str:
    """One line. Temporal puts one that is too long behind one of its own."""
    if failure.HasField("server_failure_info") and failure.HasField("cause"):
        failure = failure.cause
    if failure.HasField("timeout_failure_info"):
        kind = failure.timeout_failure_info.timeout_type
        return _TIMEOUTS.get(kind, first_line(failure.message))
    return first_line(failure.message)
