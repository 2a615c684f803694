"""Receipts live where their effect lives: an actor's own record of the operations it carried out."""

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from pydantic import BaseModel

from ratchet.spec.faults import Conflict
from ratchet.spec.ids import OpId
from ratchet.spec.operations import AnyArgs

ReceiptT = TypeVar("ReceiptT", bound=BaseModel)

NO_JOIN = "RATCHET_CHAOS_NO_JOIN"
"""For the negative control of benchmarks.chaos alone: books forget at once, so that a call that comes again
is carried out again, and its oracles can be seen to notice."""
KEPT = 0 if os.environ.get(NO_JOIN) else 256
"""Receipts kept by an actor: far more than can be asked for again after any recovery."""


@dataclass(frozen=True, slots=True)
class Entry:
    args_digest: str
    receipt: BaseModel


class ReceiptBook:
    """Makes the effects of an actor happen once per operation id, whoever calls it again."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._incarnation = 0
        self._lock = Lock()

    def adopt(self, op: OpId) -> None:
        """Take over a higher incarnation; refuse a lower one (law 13)."""
        with self._lock:
            if op.incarnation < self._incarnation:
                raise Conflict(
                    f"{op} is of incarnation {op.incarnation}; this actor serves {self._incarnation}"
                )
            self._incarnation = op.incarnation

    def once(self, args: AnyArgs, effect: Callable[[], ReceiptT]) -> ReceiptT:
        """The receipt of `args.op`, carried out now if it never was. One caller at a time per actor."""
        known = self._known(args)
        if known is not None:
            return known  # type: ignore[return-value]
        self.adopt(args.op)
        receipt = effect()
        with self._lock:
            self._entries[str(args.op)] = Entry(args.digest(), receipt)
            while len(self._entries) > KEPT:
                self._entries.popitem(last=False)
        return receipt

    def _known(self, args: AnyArgs) -> BaseModel | None:
        with self._lock:
            entry = self._entries.get(str(args.op))
        if entry is None:
            return None
        if entry.args_digest != args.digest():
            raise Conflict(f"{args.op} was carried out with other arguments")
        return entry.receipt

    def entries(self) -> list[tuple[str, str, dict[str, object]]]:
        """(operation, arguments' digest, receipt as JSON), oldest first."""
        with self._lock:
            return [(op, e.args_digest, e.receipt.model_dump(mode="json")) for op, e in self._entries.items()]
