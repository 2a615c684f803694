"""Which finished groups an asynchronous step trains on, and which have become too old.

Staleness is counted in optimizer steps: the step of the weights that are trained, less that of the weights
that sampled a group's first token. After a recovery it may be negative, for groups of the lost weights.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.spec.faults import SpecError
from ratchet.spec.imports import load_class
from ratchet.spec.run_spec import AsynchronousSpec


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt group that is not trained yet."""

    key: int
    start: int | None
    """Step of the weights that sampled its first token; None: not begun, as far as anybody knows."""
    arrived: float | None
    """When it was finished, seconds since the epoch; None: it is not."""


class Sampler(Protocol):
    """Looks at metadata only, and has no state: whoever resumes asks it the same again."""

    def select(self, candidates: Sequence[Candidate], step: int, wanted: int) -> Collection[int]:
        """Keys of at most `wanted` finished groups, for weights of `step`. Of `candidates`, which come in
        the order of their keys, those that nobody has begun are listed as far as the next `wanted` go."""
        ...

    def evict(self, candidates: Sequence[Candidate], step: int) -> Collection[int]:
        """Keys of groups, finished or being sampled, that nobody will train on any more."""
        ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """The prompts of a step are those that come next, however long one of them takes: which group is trained
    in which step depends on nothing but the prompts. What is stale by then is bounded by what may be begun
    (`AsynchronousSpec.buffered`)."""

    max_staleness: int

    def select(self, candidates: Sequence[Candidate], step: int, wanted: int) -> Collection[int]:
        del step
        return [each.key for each in candidates[:wanted] if each.arrived is not None]

    def evict(self, candidates: Sequence[Candidate], step: int) -> Collection[int]:
        del candidates, step
        return ()


@dataclass(frozen=True, slots=True)
class WeightFifo:
    """Groups of the oldest weights first; newer ones wait until all of the older are in."""

    max_staleness: int

    def select(self, candidates: Sequence[Candidate], step: int, wanted: int) -> Collection[int]:
        del step
        chosen: list[int] = []
        begun = [each for each in candidates if each.start is not None]
        for start in sorted({each.start for each in begun if each.start is not None}):
            of_these = [each for each in begun if each.start == start]
            chosen += [each.key for each in of_these if each.arrived is not None]
            if len(chosen) >= wanted or any(each.arrived is None for each in of_these):
                break
        return chosen[:wanted]

    def evict(self, candidates: Sequence[Candidate], step: int) -> Collection[int]:
        del candidates, step
        return ()


@dataclass(frozen=True, slots=True)
class ReadyFirst:
    """Groups as they are finished: short responses are trained on sooner than long ones, which may become
    too old meanwhile."""

    max_staleness: int

    def select(self, candidates: Sequence[Candidate], step: int, wanted: int) -> Collection[int]:
        ready = _finished_within(candidates, step - self.max_staleness)
        return [each.key for each in sorted(ready, key=lambda each: (each.arrived, each.key))[:wanted]]

    def evict(self, candidates: Sequence[Candidate], step: int) -> Collection[int]:
        return _begun_before(candidates, step - self.max_staleness)


@dataclass(frozen=True, slots=True)
class Windowed:
    """Any group within the window, those of the newest weights first if `freshest_first`."""

    max_staleness: int
    freshest_first: bool = True

    def select(self, candidates: Sequence[Candidate], step: int, wanted: int) -> Collection[int]:
        ready = _finished_within(candidates, step - self.max_staleness)

        def rank(each: Candidate) -> tuple[int, int]:
            assert each.start is not None
            return (-each.start if self.freshest_first else each.start), each.key

        return [each.key for each in sorted(ready, key=rank)[:wanted]]

    def evict(self, candidates: Sequence[Candidate], step: int) -> Collection[int]:
        return _begun_before(candidates, step - self.max_staleness)


def _finished_within(candidates: Sequence[Candidate], oldest: int) -> list[Candidate]:
    return [
        each
        for each in candidates
        if each.arrived is not None and each.start is not None and each.start >= oldest
    ]


def _begun_before(candidates: Sequence[Candidate], oldest: int) -> list[int]:
    return [each.key for each in candidates if each.start is not None and each.start < oldest]


_OURS = {"in_order": InOrder, "weight_fifo": WeightFifo, "ready_first": ReadyFirst}


def create_sampler(spec: AsynchronousSpec) -> Sampler:
    """The sampler a spec names. Raises SpecError."""
    if spec.sampler == "windowed":
        return Windowed(spec.max_staleness, spec.freshest_first)
    if spec.sampler in _OURS:
        return _OURS[spec.sampler](spec.max_staleness)
    factory = load_class(
        "asynchronous.sampler",
        spec.sampler,
        allowed="in_order, weight_fifo, ready_first, windowed, or module:Class of your own",
        known=[*_OURS, "windowed"],
    )
    return factory(spec.max_staleness)


def checked(chosen: Collection[int], candidates: Sequence[Candidate], wanted: int, name: str) -> list[int]:
    """The choice of a sampler of somebody's own, in order. Raises SpecError for one that cannot be."""
    finished = {each.key for each in candidates if each.arrived is not None}
    if len(set(chosen)) != len(chosen) or not finished.issuperset(chosen) or len(chosen) > wanted:
        raise SpecError(
            f"asynchronous.sampler: {name} chose groups {sorted(chosen)}: it has to choose at most {wanted} "
            f"different ones of those that are finished ({sorted(finished)})"
        )
    return sorted(chosen)
