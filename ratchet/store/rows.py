"""From the entries that a workflow records to rows."""

import math
from collections.abc import Mapping

from pydantic import JsonValue

from ratchet.spec.control import CheckpointEntry, EvaluationEntry, EventEntry, RecordRequest, StepEntry
from ratchet.store.models import Checkpoint, Evaluation, Event, Step


def step_row(request: RecordRequest, entry: StepEntry) -> Step:
    rollout, train, refit = entry.rollout, entry.train, entry.refit
    return Step(
        run=request.run,
        incarnation=request.incarnation,
        step=entry.step,
        version_digest=train.version.digest,
        started_at=entry.started_at,
        finished_at=entry.finished_at,
        cursor_start=train.cursor_start,
        cursor_end=train.cursor_end,
        num_groups=train.num_groups,
        num_samples=rollout.num_samples,
        num_tokens=rollout.num_tokens,
        replayed_groups=rollout.replayed_groups,
        zero_advantage_groups=train.zero_advantage_groups,
        samples_generated=rollout.samples_generated,
        optimizer_steps=train.optimizer_steps,
        reward_mean=_finite(rollout.reward_mean),
        reward_std=_finite(rollout.reward_std),
        accuracy=_finite(rollout.accuracy),
        length_mean=_finite(rollout.length_mean),
        truncated_fraction=_finite(rollout.truncated_fraction),
        loss=_measured(train.metrics, "loss"),
        grad_norm=_measured(train.metrics, "grad_norm"),
        learning_rate=_measured(train.metrics, "learning_rate"),
        logprob_error=_measured(train.metrics, "logprob_error"),
        kl=_measured(train.metrics, "kl"),
        metrics=_json_metrics(train.metrics | refit.metrics),
        rollout_engine_s=rollout.engine_s,
        rollout_submits=rollout.submits,
        rollout_starts=rollout.starts,
        train_engine_s=train.engine_s,
        train_submits=train.submits,
        train_starts=train.starts,
        refit_engine_s=refit.engine_s,
        refit_submits=refit.submits,
        refit_starts=refit.starts,
        refit_bytes=refit.num_bytes,
        wire_digest=refit.wire_digest,
        rollout_incarnation=rollout.version.incarnation,
        rollout_step=rollout.version.step,
        rollout_digest=rollout.version.digest,
        dropped=list(rollout.dropped),
    )


def checkpoint_row(request: RecordRequest, entry: CheckpointEntry) -> Checkpoint:
    receipt = entry.receipt
    return Checkpoint(
        run=request.run,
        incarnation=request.incarnation,
        step=entry.step,
        version_digest=receipt.version.digest,
        cursor=entry.cursor,
        path=receipt.path,
        digest=receipt.digest,
        manifest_digest=receipt.manifest_digest,
        num_bytes=receipt.num_bytes,
        num_files=receipt.num_files,
        write_s=receipt.write_s,
        submits=receipt.submits,
        starts=receipt.starts,
        committed_at=request.at,
    )


def evaluation_row(request: RecordRequest, entry: EvaluationEntry) -> Evaluation:
    receipt = entry.receipt
    return Evaluation(
        run=request.run,
        incarnation=request.incarnation,
        step=entry.step,
        version_digest=receipt.version.digest,
        num_problems=receipt.num_problems,
        accuracy=_finite(receipt.accuracy),
        reward_mean=_finite(receipt.reward_mean),
        length_mean=_finite(receipt.length_mean),
        engine_s=receipt.engine_s,
        submits=receipt.submits,
        starts=receipt.starts,
        evaluated_at=request.at,
    )


def event_row(request: RecordRequest, entry: EventEntry) -> Event:
    return Event(
        run=request.run,
        incarnation=request.incarnation,
        key=entry.key,
        topic=entry.topic,
        message=entry.message.replace("\0", "\N{REPLACEMENT CHARACTER}"),  # Postgres has no NUL in texts
        data=entry.data,
        at=request.at,
    )


def _finite(value: float) -> float | None:
    """Databases and JSON have no NaN; a row that is refused would hide the step that went wrong."""
    return value if math.isfinite(value) else None


def _measured(metrics: Mapping[str, float], name: str) -> float | None:
    return _finite(metrics[name]) if name in metrics else None


def _json_metrics(metrics: Mapping[str, float]) -> dict[str, JsonValue]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
