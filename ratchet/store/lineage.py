"""Where weights come from, and what became of them: up and down the tree of incarnations and forks.

Every incarnation grew from one checkpoint of one incarnation of one run, so the way up is a line and the way
down is a tree. A recursive query walks it life by life, not step by step, and each question is one statement:
a life is a range of steps under the primary key.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import JsonValue
from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Double,
    FromClause,
    Row,
    Select,
    String,
    func,
    literal,
    null,
    select,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.types import TypeEngine

from ratchet.store.models import Checkpoint, Evaluation, Incarnation, Run, Step
from ratchet.store.store import Store

DEEPEST = 10_000
"""Lives on one line; more can only be a circle of damaged rows."""


@dataclass(frozen=True, slots=True)
class Life:
    """The part of an incarnation that belongs to the answer, and what it was made with."""

    depth: int
    """Lives between this one and the one asked about."""
    run: str
    incarnation: int
    first: int
    """The step of its oldest weights here."""
    last: int | None
    """The step of its newest weights here; None: all there are."""
    recipe: str
    seed: int
    spec_digest: str
    """sha256 of the run spec's JSON form."""
    code: dict[str, JsonValue]
    """Versions by package, and `revision`."""
    inputs: dict[str, JsonValue]
    """Digests of environment and data set; see `provenance.input_digests`. Empty: not recorded."""
    opened_at: float
    restored_step: int
    restored_digest: str | None
    """Of the weights it began with, those of `restored_step`."""
    model_digest: str | None
    """Of the base model."""
    from_checkpoint: str | None
    parent_run: str | None
    """None: it grew from the base model."""
    parent_incarnation: int | None

    @property
    def whole(self) -> bool:
        """Its beginning belongs to the answer."""
        return self.first == self.restored_step


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A rollout batch (prompts [cursor_start, cursor_end), answered by a weight version), and the weights
    that training on it made."""

    run: str
    incarnation: int
    step: int
    digest: str
    cursor_start: int
    cursor_end: int
    dropped: tuple[int, ...]
    """Prompts of the batch that were given up."""
    from_incarnation: int | None
    from_step: int | None
    from_digest: str | None
    finished_at: float


@dataclass(frozen=True, slots=True)
class SavedWeights:
    run: str
    incarnation: int
    step: int
    digest: str
    path: str
    state_digest: str
    committed_at: float


@dataclass(frozen=True, slots=True)
class EvaluatedWeights:
    run: str
    incarnation: int
    step: int
    digest: str
    accuracy: float | None
    num_problems: int
    evaluated_at: float


@dataclass(slots=True)
class Line:
    """An answer. Lives by depth; everything else by life and step."""

    lives: list[Life] = field(default_factory=list[Life])
    steps: list[TrainedStep] = field(default_factory=list[TrainedStep])
    checkpoints: list[SavedWeights] = field(default_factory=list[SavedWeights])
    evaluations: list[EvaluatedWeights] = field(default_factory=list[EvaluatedWeights])


class Lineage:
    """Questions to a store. Every method blocks, and raises Unavailable like the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def up(self, run: str, incarnation: int, step: int) -> Line:
        """What made these weights: every step, prompt range and checkpoint back to the base model, through
        recoveries and forks. Empty if there is no such incarnation."""
        return self._ask(up_query(run, incarnation, step))

    def down(self, run: str, incarnation: int, step: int) -> Line:
        """What was made of these weights: later steps, checkpoints, evaluations, recoveries and forks."""
        seed = select(*_start(run, incarnation, step, step))
        return self._ask(_down(seed))

    def down_from_prompt(self, run: str, position: int) -> Line:
        """What was made of one prompt, in every incarnation that trained on it."""
        trained = select(
            literal(0, BigInteger).label("depth"), Step.run, Step.incarnation, Step.step.label("first"),
            (Step.step - 1).label("after"),
        ).where(Step.run == run, Step.cursor_start <= position, Step.cursor_end > position)  # fmt: skip
        return self._ask(_down(trained))

    def _ask(self, query: CompoundSelect[*tuple[Any, ...]]) -> Line:
        line = Line()
        with self._store.reading() as session:
            for row in session.execute(query):
                _add(line, row)
        line.lives.sort(key=lambda life: (life.depth, life.run, life.incarnation))
        place = {(life.run, life.incarnation): number for number, life in enumerate(line.lives)}
        for found in (line.steps, line.checkpoints, line.evaluations):
            found.sort(key=lambda one: (place[one.run, one.incarnation], one.step))
        return line


def up_query(run: str, incarnation: int, step: int) -> CompoundSelect[*tuple[Any, ...]]:
    """Lives back to the base model, each with the step that the next one grew from."""
    asked = (("depth", 0, BigInteger), ("run", run, String), ("number", incarnation, BigInteger))
    path = select(
        *(literal(value, kind()).label(name) for name, value, kind in asked),
        literal(step, BigInteger).label("last"),
    ).cte("path", recursive=True)
    path = path.union_all(
        select(
            path.c.depth + 1,
            Incarnation.parent_run,
            Incarnation.parent_incarnation,
            Incarnation.restored_step,
        )
        .join(Incarnation, (Incarnation.run == path.c.run) & (Incarnation.number == path.c.number))
        .where(Incarnation.parent_run.is_not(None), path.c.depth < DEEPEST)
    )
    first = func.coalesce(Incarnation.restored_step, 0)
    return _answer(path, path.c.number, first, first, path.c.last)


def _start(run: str, incarnation: int, first: int, after: int) -> Iterable[ColumnElement[Any]]:
    yield literal(0, BigInteger).label("depth")
    yield literal(run, String).label("run")
    yield literal(incarnation, BigInteger).label("incarnation")
    yield literal(first, BigInteger).label("first")
    yield literal(after, BigInteger).label("after")


def _down(seed: Select[*tuple[Any, ...]]) -> CompoundSelect[*tuple[Any, ...]]:
    """Lives that grew from the seed's, each from the step it grew from on."""
    grown = seed.cte("grown", recursive=True)
    grown = grown.union_all(
        select(
            grown.c.depth + 1,
            Incarnation.run,
            Incarnation.number,
            Incarnation.restored_step,
            Incarnation.restored_step,
        )
        .join(
            Incarnation,
            (Incarnation.parent_run == grown.c.run) & (Incarnation.parent_incarnation == grown.c.incarnation),
        )
        .where(Incarnation.restored_step >= grown.c.first, grown.c.depth < DEEPEST)
    )
    return _answer(grown, grown.c.incarnation, grown.c.first, grown.c.after, None)


def _answer(
    lives: CTE,
    number: ColumnElement[int],
    first: ColumnElement[int],
    after: ColumnElement[int],
    last: ColumnElement[int] | None,
) -> CompoundSelect[*tuple[Any, ...]]:
    """Everything of `lives`: weights of steps from `first` on, trained in steps after `after`."""
    life = lives.join(Incarnation, (Incarnation.run == lives.c.run) & (Incarnation.number == number))

    def of(table: type[Step] | type[Checkpoint] | type[Evaluation], begin: ColumnElement[bool]) -> FromClause:
        same = (table.run == lives.c.run) & (table.incarnation == number) & begin
        return life.join(table, same if last is None else same & (table.step <= last))

    return union_all(
        _part(
            "life", life.join(Run, Run.id == lives.c.run),
            depth=lives.c.depth, run=lives.c.run, incarnation=number, step=first, last=last,
            digest=Incarnation.restored_digest, path=Incarnation.from_checkpoint, at=Incarnation.opened_at,
            name=Run.recipe, seed=Run.seed, other_digest=Run.spec_digest, code=Run.code, inputs=Run.inputs,
            base_digest=Incarnation.model_digest, parent_run=Incarnation.parent_run,
            from_incarnation=Incarnation.parent_incarnation, from_step=Incarnation.restored_step,
        ),
        _part(
            "step", of(Step, Step.step > after),
            run=Step.run, incarnation=Step.incarnation, step=Step.step, digest=Step.version_digest,
            start=Step.cursor_start, last=Step.cursor_end, inputs=Step.dropped, at=Step.finished_at,
            from_incarnation=Step.rollout_incarnation, from_step=Step.rollout_step,
            other_digest=Step.rollout_digest,
        ),
        _part(
            "checkpoint", of(Checkpoint, Checkpoint.step >= first),
            run=Checkpoint.run, incarnation=Checkpoint.incarnation, step=Checkpoint.step,
            digest=Checkpoint.version_digest, path=Checkpoint.path, other_digest=Checkpoint.digest,
            at=Checkpoint.committed_at,
        ),
        _part(
            "evaluation", of(Evaluation, Evaluation.step >= first),
            run=Evaluation.run, incarnation=Evaluation.incarnation, step=Evaluation.step,
            digest=Evaluation.version_digest, value=Evaluation.accuracy, start=Evaluation.num_problems,
            at=Evaluation.evaluated_at,
        ),
    )  # fmt: skip


_COLUMNS: dict[str, type[TypeEngine[Any]]] = {
    "depth": BigInteger, "run": String, "incarnation": BigInteger, "step": BigInteger, "digest": String,
    "start": BigInteger, "last": BigInteger, "from_incarnation": BigInteger, "from_step": BigInteger,
    "other_digest": String, "value": Double, "at": Double, "path": String, "name": String,
    "seed": BigInteger, "code": JSON, "inputs": JSON, "base_digest": String, "parent_run": String,
}  # fmt: skip
"""Of all parts of an answer, which are the parts of one statement; each part fills some of them."""


def _part(kind: str, source: FromClause, **columns: Any) -> Select[*tuple[Any, ...]]:
    return select(
        literal(kind, String).label("kind"),
        *(
            (sql_cast(null(), of()) if columns.get(name) is None else columns[name]).label(name)
            for name, of in _COLUMNS.items()
        ),
    ).select_from(source)


def _add(line: Line, row: Row[*tuple[Any, ...]]) -> None:
    match row.kind:
        case "life":
            line.lives.append(
                Life(
                    row.depth,
                    row.run,
                    row.incarnation,
                    row.step,
                    row.last,
                    row.name,
                    row.seed,
                    row.other_digest,
                    row.code,
                    row.inputs or {},
                    row.at,
                    row.from_step or 0,
                    row.digest,
                    row.base_digest,
                    row.path,
                    row.parent_run,
                    row.from_incarnation,
                )
            )
        case "step":
            line.steps.append(
                TrainedStep(
                    row.run,
                    row.incarnation,
                    row.step,
                    row.digest,
                    row.start,
                    row.last,
                    tuple(cast("list[int]", row.inputs or [])),
                    row.from_incarnation,
                    row.from_step,
                    row.other_digest,
                    row.at,
                )
            )
        case "checkpoint":
            line.checkpoints.append(
                SavedWeights(
                    row.run, row.incarnation, row.step, row.digest, row.path, row.other_digest, row.at
                )
            )
        case _:
            line.evaluations.append(
                EvaluatedWeights(row.run, row.incarnation, row.step, row.digest, row.value, row.start, row.at)
            )
