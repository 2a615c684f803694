"""A train step that takes its groups in as they are finished."""

import time
from collections.abc import Callable, Iterator, Sequence

from ratchet.data_plane.batch import GroupMeta
from ratchet.data_plane.filters import WEIGHT_VERSION
from ratchet.policy.protocol import StepResult
from ratchet.rollouts.drawing import summary
from ratchet.rollouts.group import PromptGroup
from ratchet.rollouts.partition import TrainPartition, is_finished, is_given_up
from ratchet.rollouts.samplers import Candidate, checked, create_sampler
from ratchet.spec import deadlines
from ratchet.spec.faults import Cancelled, Unavailable
from ratchet.spec.ids import WeightVersion
from ratchet.spec.operations import TrainArgs
from ratchet.spec.ranges import keys_of, to_ranges
from ratchet.spec.receipts import TrainReceipt
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.summing import rollout_receipt

LOOK_EVERY = 0.02
EVICTED = "too-old"


class StreamedStep:
    """Which groups a step was made of. Another step over the same arguments begins anew: what it chooses
    depends on what is there by then."""

    def __init__(self, spec: RunSpec, partition: TrainPartition, args: TrainArgs) -> None:
        assert spec.asynchronous is not None, "the groups of a synchronous step are known before it begins"
        self._spec = spec
        self._asynchronous = spec.asynchronous
        self._sampler = create_sampler(spec.asynchronous)
        self._partition = partition
        self._args = args
        self._finished = set(keys_of(args.finished))
        """Positions that the run was done with before."""
        self._taken: set[int] = set()
        """Positions of `_groups`. They stay in the data plane until the step is done: it may be aborted."""
        self._groups: list[PromptGroup] = []
        self._evicted: set[int] = set()
        self._given_up: set[int] = set()
        self._waited_s = 0.0

    def portions(self, should_stop: Callable[[], bool]) -> Iterator[Sequence[PromptGroup]]:
        """The groups of the step, some at a time, in the order of their keys within each. Raises Cancelled
        when `should_stop` turns true while it waits, and Unavailable when it has waited too long."""
        silent_since = time.monotonic()
        while (missing := self._args.wanted - len(self._groups)) > 0:
            chosen = self._choose(missing)
            if len(chosen) >= min(self._asynchronous.min_groups_to_train, missing):
                groups = self._partition.fetch(chosen)
                self._groups += groups
                self._taken.update(chosen)
                silent_since = time.monotonic()
                yield groups
                continue
            if should_stop():
                raise Cancelled(f"{self._args.op} was cancelled with {len(self._groups)} groups taken in")
            waited = time.monotonic() - silent_since
            if waited > deadlines.STREAM_SILENT:
                raise Unavailable(
                    f"{self._args.op} waited {waited:.0f} s for another finished group, with "
                    f"{len(self._groups)} of {self._args.wanted} taken in",
                    role="generator",
                )
            time.sleep(LOOK_EVERY)
            self._waited_s += LOOK_EVERY

    def receipt(
        self, result: StepResult, version: WeightVersion, optimizer_steps: int, engine_s: float
    ) -> TrainReceipt:
        keys = [group.key for group in self._groups]
        args, trained = self._args, to_ranges(keys)
        staleness = [args.version.step - group.version_start.step for group in self._groups]
        metrics = {
            "staleness_max": float(max(staleness)),
            "staleness_min": float(min(staleness)),
            "staleness_mean": sum(staleness) / len(staleness),
            "mixed_groups": float(sum(group.version_start != group.version_end for group in self._groups)),
            "evicted_groups": float(len(self._evicted)),
            "train_idle_s": self._waited_s,
        }
        return TrainReceipt(
            op=str(args.op),
            engine_s=max(0.0, engine_s - self._waited_s),
            version=version,
            cursor_start=trained[0][0],
            cursor_end=trained[-1][1],
            num_groups=len(keys),
            zero_advantage_groups=result.zero_advantage_groups,
            num_tokens=result.num_tokens,
            optimizer_steps=optimizer_steps,
            trained=trained,
            evicted=to_ranges(self._evicted),
            given_up=to_ranges(self._given_up),
            batch=rollout_receipt(
                str(args.op),
                (trained[0][0], trained[-1][1]),
                min((group.version_start for group in self._groups), key=lambda version: version.step),
                [summary(group, replayed=False) for group in self._groups],
            ),
            metrics=result.metrics | metrics,
        )

    def _choose(self, wanted: int) -> list[int]:
        """Keys of finished groups; what is too old, or nobody's any more, is thrown away on the way."""
        found = self._partition.look()
        over = [group.key for group in found if self._is_over(group.key)]
        self._given_up.update(group.key for group in found if is_given_up(group) and group.key not in over)
        candidates = self._candidates([group for group in found if group.key not in over], wanted)
        step = self._args.version.step
        too_old = sorted(self._sampler.evict(candidates, step))
        self._partition.evict([*over, *too_old], EVICTED)
        self._evicted.update(too_old)
        left = [each for each in candidates if each.key not in too_old]
        chosen = self._sampler.select(left, step, wanted)
        return checked(chosen, left, wanted, self._asynchronous.sampler)

    def _is_over(self, key: int) -> bool:
        return key < self._args.cursor_start or key in self._finished or key in self._evicted

    def _candidates(self, found: Sequence[GroupMeta], wanted: int) -> list[Candidate]:
        """Those that are there; and of those that are not, as many as would make the next `wanted`."""
        there = {group.key: group for group in found}
        candidates: list[Candidate] = []
        key, last = self._args.cursor_start, max(there, default=-1)
        while key <= last or len(candidates) < wanted:
            if not self._is_over(key) and key not in self._given_up and key not in self._taken:
                candidates.append(_candidate(key, there.get(key)))
            key += 1
        return candidates


def _candidate(key: int, group: GroupMeta | None) -> Candidate:
    if group is None:
        return Candidate(key, None, None)
    start = group.tags.get(WEIGHT_VERSION)
    return Candidate(
        key,
        start if isinstance(start, int) else None,
        _arrived(group) if is_finished(group) else None,
    )


def _arrived(group: GroupMeta) -> float:
    told = group.tags.get("finished_at")
    return told if isinstance(told, float) else group.created_at
