"""A line as a graph for people: thousands of steps between two weights that matter are one edge."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ratchet.store.lineage import Life, Line, TrainedStep


@dataclass(frozen=True, slots=True)
class Weights:
    """A weight version that something points to: where a life begins or ends, what was saved, evaluated or
    grown from."""

    run: str
    incarnation: int
    step: int
    digest: str | None
    """None: not recorded, as when steps were lost with the history."""

    @property
    def name(self) -> str:
        return f"{self.run}/weights/{self.incarnation}.{self.step}"


@dataclass(frozen=True, slots=True)
class Trained:
    """Steps of one life between two weights."""

    life: Life
    before: Weights
    after: Weights
    steps: tuple[TrainedStep, ...]

    @property
    def prompts(self) -> tuple[int, int]:
        """Their cursor positions [start, end)."""
        return self.steps[0].cursor_start, self.steps[-1].cursor_end


@dataclass(frozen=True, slots=True)
class Grown:
    """A life that began, from weights of another one or from the base model (None)."""

    life: Life
    parent: Weights | None
    weights: Weights


@dataclass(frozen=True, slots=True)
class Graph:
    line: Line
    grown: tuple[Grown, ...]
    trained: tuple[Trained, ...]

    def life_of(self, run: str, incarnation: int) -> Life:
        return next(life for life in self.line.lives if (life.run, life.incarnation) == (run, incarnation))


def graph(line: Line) -> Graph:
    """Collapse a line."""
    steps: defaultdict[tuple[str, int], list[TrainedStep]] = defaultdict(list)
    for step in line.steps:
        steps[step.run, step.incarnation].append(step)
    marked = _marked(line)
    grown: list[Grown] = []
    trained: list[Trained] = []
    for life in line.lives:
        mine = steps[life.run, life.incarnation]
        told = {step: digest for step, digest in marked[life.run, life.incarnation].items() if digest}
        digests = {step.step: step.digest for step in mine} | told
        if life.whole:
            grown.append(_grown(life, digests))
        trained += _stretches(life, mine, digests, marked[life.run, life.incarnation])
    return Graph(line, tuple(grown), tuple(trained))


def _marked(line: Line) -> defaultdict[tuple[str, int], dict[int, str | None]]:
    """Of every life, the steps whose weights matter, and their digests where they are told here."""
    marked: defaultdict[tuple[str, int], dict[int, str | None]] = defaultdict(dict)
    for saved in line.checkpoints:
        marked[saved.run, saved.incarnation][saved.step] = saved.digest
    for seen in line.evaluations:
        marked[seen.run, seen.incarnation][seen.step] = seen.digest
    for life in line.lives:
        if life.whole and life.parent_run is not None and life.parent_incarnation is not None:
            marked[life.parent_run, life.parent_incarnation].setdefault(life.first, life.restored_digest)
        digest = life.restored_digest if life.whole else None
        marked[life.run, life.incarnation].setdefault(life.first, digest)
    return marked


def _grown(life: Life, digests: dict[int, str]) -> Grown:
    weights = Weights(life.run, life.incarnation, life.first, digests.get(life.first))
    if life.parent_run is None or life.parent_incarnation is None:
        return Grown(life, None, weights)
    parent = Weights(life.parent_run, life.parent_incarnation, life.first, weights.digest)
    return Grown(life, parent, weights)


def _stretches(
    life: Life, steps: list[TrainedStep], digests: dict[int, str], marked: dict[int, str | None]
) -> Iterator[Trained]:
    if not steps:
        return
    ends = sorted({steps[0].step - 1, steps[-1].step, *(step for step in marked if step <= steps[-1].step)})
    for begin, end in pairwise(ends):
        between = tuple(step for step in steps if begin < step.step <= end)
        if between:
            before, after = (Weights(life.run, life.incarnation, n, digests.get(n)) for n in (begin, end))
            yield Trained(life, before, after, between)
