"""The journal's records as views, each with the step that was trained on it."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from api.cursors import cursor_after
from api.problems import NotFound
from api.services import Services
from ratchet.spec.rollout_views import (
    DroppedView,
    RolloutPage,
    RolloutRecord,
    RolloutView,
    SampleView,
    TokensView,
)
from ratchet.spec.run_spec import LARGEST
from ratchet.store import RunRecord, StepRecord

if TYPE_CHECKING:  # brings numpy
    from ratchet.rollouts.group import PromptGroup, Sample


def rollout_page(
    services: Services, run: RunRecord, step: int | None, after: int | None, limit: int
) -> RolloutPage:
    """Blocks. `step`: only what was trained in that step on the path to the head; `after`: a key."""
    steps = services.store.steps_on_path(run.id)
    start, stop = (0, LARGEST) if step is None else _keys(run, steps, step)
    keys = range(start if after is None else max(start, after + 1), stop)
    page, prompts = services.journals.page(run, keys, limit)
    dropped = [
        DroppedView(key=draw.key, incarnation=draw.incarnation, cause=draw.cause) for draw in page.dropped
    ]
    return RolloutPage(
        run=run.id,
        rollouts=[
            RolloutView(**_group(group, prompt, steps))
            for group, prompt in zip(page.groups, prompts, strict=True)
        ],
        dropped=dropped,
        next_cursor=None if page.last is None else cursor_after(page.last),
    )


def rollout_record(services: Services, run: RunRecord, key: int) -> RolloutRecord:
    """Blocks. Raises NotFound."""
    found = services.journals.group(run, key)
    if found is None:
        raise NotFound(f"the journal of run {run.id} has no finished group of key {key}")
    group, prompt = found
    return RolloutRecord(
        **_group(group, prompt, services.store.steps_on_path(run.id)),
        prompt_tokens=group.prompt.tolist(),
        raw=[
            TokensView(
                tokens=sample.tokens.tolist(),
                logprobs=[_finite(value) for value in sample.logprobs.tolist()],
                mask=sample.mask.tolist(),
            )
            for sample in group.samples
        ],
    )


def _keys(run: RunRecord, steps: Sequence[StepRecord], step: int) -> tuple[int, int]:
    for known in steps:
        if known.step == step:
            return known.cursor_start, known.cursor_end
    raise NotFound(f"run {run.id} has not trained step {step}: it has done {run.step}")


def _group(group: "PromptGroup", prompt: str | None, steps: Sequence[StepRecord]) -> dict[str, Any]:
    trained = _trained(steps, group.key)
    return {
        "key": group.key,
        "problem_id": group.problem_id,
        "prompt": prompt,
        "incarnation": group.incarnation,
        "version_start": str(group.version_start),
        "version_end": str(group.version_end),
        "trained_at": trained.step if trained else None,
        "logprob_error": trained.logprob_error if trained else None,
        "samples": [_sample(sample) for sample in group.samples],
    }


def _trained(steps: Sequence[StepRecord], key: int) -> StepRecord | None:
    place = bisect_right(steps, key, key=lambda step: step.cursor_start) - 1
    return steps[place] if place >= 0 and key < steps[place].cursor_end else None


def _sample(sample: "Sample") -> SampleView:
    return SampleView(
        text=sample.text,
        num_tokens=len(sample.tokens),
        reward=_finite(sample.reward),
        rewards={name: _finite(value) for name, value in sample.rewards.items()},
        correct=sample.correct,
        finish_reason=sample.finish_reason,
        seed=sample.seed,
        logprob_mean=_mean(sample.logprobs.tolist()),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return _finite(sum(known) / len(known)) if known else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
