"""Lineage as views: the store's line, with thousands of steps between two weights as one stretch."""

from collections.abc import Mapping

from api.presenting import as_time
from api.problems import NotFound
from api.services import Services
from ratchet.spec.lineage_views import (
    LifeView,
    LineageView,
    SavedView,
    ScoredView,
    TrainingView,
    WeightsView,
)
from ratchet.store import Line, Lineage, RunRecord
from ratchet.store.lineage_graph import Weights, graph


def line_of(
    services: Services, run: RunRecord, incarnation: int | None, step: int | None, *, down: bool
) -> tuple[Line, int, int]:
    """The line of a step's weights (left out: of the head's), and which they are. Blocks. Raises NotFound."""
    step = run.step if step is None else step
    if incarnation is None:
        incarnation = _on_path(services.store.path(run.id), step)
    lineage = Lineage(services.store)
    line = (lineage.down if down else lineage.up)(run.id, incarnation, step)
    if not line.lives:
        raise NotFound(f"run {run.id} has no weights {incarnation}.{step}")
    return line, incarnation, step


def lineage_view(run: str, incarnation: int, step: int, line: Line) -> LineageView:
    shape = graph(line)
    parents = {(grown.life.run, grown.life.incarnation): grown.parent for grown in shape.grown}
    return LineageView(
        run=run,
        incarnation=incarnation,
        step=step,
        lives=[
            LifeView(
                run=life.run,
                incarnation=life.incarnation,
                depth=life.depth,
                recipe=life.recipe,
                seed=life.seed,
                spec_digest=life.spec_digest,
                code=life.code,
                inputs=life.inputs,
                opened_at=as_time(life.opened_at),
                restored_step=life.restored_step,
                model_digest=life.model_digest,
                from_checkpoint=life.from_checkpoint,
                parent=_weights(parents.get((life.run, life.incarnation))),
            )
            for life in line.lives
        ],
        training=[
            TrainingView(
                before=WeightsView.model_validate(one.before, from_attributes=True),
                after=WeightsView.model_validate(one.after, from_attributes=True),
                num_steps=len(one.steps),
                cursor_start=one.prompts[0],
                cursor_end=one.prompts[1],
            )
            for one in shape.trained
        ],
        checkpoints=[
            SavedView(
                run=saved.run,
                incarnation=saved.incarnation,
                step=saved.step,
                digest=saved.digest,
                path=saved.path,
                state_digest=saved.state_digest,
                committed_at=as_time(saved.committed_at),
            )
            for saved in line.checkpoints
        ],
        evaluations=[
            ScoredView(
                run=seen.run,
                incarnation=seen.incarnation,
                step=seen.step,
                digest=seen.digest,
                accuracy=seen.accuracy,
                num_problems=seen.num_problems,
                evaluated_at=as_time(seen.evaluated_at),
            )
            for seen in line.evaluations
        ],
    )


def _weights(weights: Weights | None) -> WeightsView | None:
    return None if weights is None else WeightsView.model_validate(weights, from_attributes=True)


def _on_path(path: Mapping[int, int | None], step: int) -> int:
    """Which incarnation on the path to the head made a step: of older ones, only what was restored."""
    found = next(iter(path), 1)
    for incarnation, last in path.items():  # the newest first
        if last is None or step <= last:
            found = incarnation
    return found
