"""What happened, in tables: runs, incarnations, steps, checkpoints, evaluations, events.

A projection of workflow histories and manifests: it can be rebuilt, and nothing is decided by it.
"""

from ratchet.store.provenance import code_versions
from ratchet.store.records import (
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    IncarnationRecord,
    RunRecord,
    StepRecord,
)
from ratchet.store.store import Store

__all__ = [
    "CheckpointRecord",
    "EvaluationRecord",
    "EventRecord",
    "IncarnationRecord",
    "RunRecord",
    "StepRecord",
    "Store",
    "code_versions",
]
