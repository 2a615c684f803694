"""Rebuilding rows: what the workflow told is told again, and manifests stand in where that is lost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratchet.artifacts.manifest import Manifest
from ratchet.spec.control import CheckpointEntry, RecordRequest, RegisterRun
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.receipts import CheckpointReceipt
from ratchet.store.store import Store


@dataclass(frozen=True, slots=True)
class Told:
    """A request that once wrote into the store."""

    request: RegisterRun | RecordRequest
    at: float
    """When it was made, seconds since the epoch."""


def replay(store: Store, history: Iterable[Told]) -> int:
    """Write again what was written before, in its order: the number of requests. Rows that are there stay,
    and one that says something else is a Conflict. Which code ran it is not in a history."""
    count = 0
    for told in history:
        match told.request:
            case RegisterRun():
                store.register_run(told.request, at=told.at, code={})
            case RecordRequest():
                store.record(told.request)
        count += 1
    return count


def add_checkpoints(store: Store, run: str, manifests: Iterable[Manifest], folders: dict[str, str]) -> int:
    """Rows for the checkpoints that have none, oldest first: how many. The run has to be registered.
    `folders`: where each lies, by manifest key. How long it took to write is not in a manifest."""
    known = {(row.incarnation, row.step) for row in store.checkpoints(run)}
    missing = [one for one in _oldest_first(manifests) if (one.incarnation, one.step) not in known]
    for manifest in missing:
        op = OpId(
            run=run, incarnation=manifest.incarnation, step=manifest.step, kind=OpKind.COMMIT_CHECKPOINT
        )
        receipt = CheckpointReceipt(
            op=str(op),
            version=manifest.version,
            path=folders[manifest.key],
            digest=manifest.state_digest,
            manifest_digest=manifest.digest,
            num_bytes=manifest.num_bytes,
            num_files=len(manifest.files),
            write_s=0.0,
        )
        entry = CheckpointEntry(step=manifest.step, cursor=manifest.cursor, receipt=receipt)
        store.record(
            RecordRequest(run=run, incarnation=manifest.incarnation, at=manifest.created_at, entries=(entry,))
        )
    return len(missing)


def _oldest_first(manifests: Iterable[Manifest]) -> Sequence[Manifest]:
    return sorted(manifests, key=lambda manifest: (manifest.incarnation, manifest.step))
