"""What happened, in tables: runs, incarnations, steps, checkpoints, evaluations, events.

A projection of workflow histories and manifests: it can be rebuilt, and nothing is decided by it.
"""

from ratchet.store.audit import Audit, AuditRecord
from ratchet.store.idempotency import IdempotencyKeys
from ratchet.store.leases import Contender, LeaseRecord, Leases, Superseded
from ratchet.store.lineage import Line, Lineage
from ratchet.store.outbox import NoticeRecord
from ratchet.store.provenance import code_versions, input_digests
from ratchet.store.records import (
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    Glance,
    IncarnationRecord,
    RunRecord,
    StepRecord,
)
from ratchet.store.sink_positions import KeptPosition, SinkPositions
from ratchet.store.store import Store
from ratchet.store.tokens import TokenRecord, Tokens
from ratchet.store.write_lock import writers_of

__all__ = [
    "Audit",
    "AuditRecord",
    "CheckpointRecord",
    "Contender",
    "EvaluationRecord",
    "EventRecord",
    "Glance",
    "IdempotencyKeys",
    "IncarnationRecord",
    "KeptPosition",
    "LeaseRecord",
    "Leases",
    "Line",
    "Lineage",
    "NoticeRecord",
    "RunRecord",
    "SinkPositions",
    "StepRecord",
    "Store",
    "Superseded",
    "TokenRecord",
    "Tokens",
    "code_versions",
    "input_digests",
    "writers_of",
]
