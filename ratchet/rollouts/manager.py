"""Rollouts that go on beside each other: every prompt group by itself, handed over as it is finished."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ratchet.environments.protocol import Environment, Problem
from ratchet.generation.live import Answered, LiveEngine
from ratchet.generation.protocol import Completion, Generator
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.drawing import (
    Drawing,
    GroupSummary,
    group_of,
    sample_of,
    summary,
)
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.rollouts.partition import TrainPartition
from ratchet.rollouts.worker import RolloutResult
from ratchet.sessions.losses import WeightsMissing
from ratchet.spec.asynchronous import AsynchronousSpec
from ratchet.spec.faults import Cancelled, DataFault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

SCORERS = 64
"""Threads for environments whose `score` blocks."""

TOO_OLD = "too-old"


@dataclass(slots=True, eq=False)
class _InFlight:
    """A group that is being sampled."""

    key: int
    start: WeightVersion
    task: asyncio.Task[GroupSummary | None]


@dataclass(slots=True)
class Counters:
    """Over the life of a manager."""

    too_old: int = 0
    """Groups that were given up while they were being sampled, since nobody would train on them."""
    given_up: int = 0
    mixed: int = 0
    """Groups that two versions sampled."""


@dataclass(slots=True)
class _Usage:
    """Between two reports."""

    since: float
    in_flight_s: float = 0.0
    """Of all groups together."""
    engine_s: float = 0.0
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.since

    def count(self, in_flight: int) -> None:
        """So many were in flight up to now."""
        now = time.monotonic()
        self.in_flight_s += in_flight * (now - self.at)
        self.at = now


@dataclass(slots=True, eq=False)
class _Batch:
    """A call of `rollout`."""

    incarnation: int
    tasks: dict[int, asyncio.Task[GroupSummary | None]] = field(default_factory=dict)
    cancelled: bool = False
    engine_s: float = 0.0
    inflight_s: float = 0.0


class RolloutManager:
    """Everything here runs in one event loop; what blocks has threads of its own. Groups begin in the order
    in which they were asked for, as many at once as `max_inflight_groups` permits."""

    def __init__(
        self,
        spec: RunSpec,
        engine: LiveEngine,
        generator: Generator,
        environment: Environment,
        journal: JournalWriter,
        index: JournalIndex,
        partition: TrainPartition,
    ) -> None:
        assert spec.asynchronous is not None, "a synchronous run has a RolloutWorker"
        self._spec = spec
        self._asynchronous: AsynchronousSpec = spec.asynchronous
        self._engine = engine
        self._drawing = Drawing(spec, generator, environment)
        self._journal = journal
        self._index = index
        self._partition = partition
        self._permits = asyncio.Semaphore(self._asynchronous.inflight(spec.grpo.num_prompts_per_step))
        self._in_flight: dict[int, _InFlight] = {}
        self._batches: set[_Batch] = set()
        self._open = asyncio.Event()
        """Whether groups may begin."""
        self._open.set()
        self._idle = asyncio.Condition()
        self._files = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._scorers = ThreadPoolExecutor(SCORERS, thread_name_prefix="score")
        self.counters = Counters()
        self.asked = self._drawing.asked
        self._usage = _Usage(time.monotonic())
        self._reported: dict[str, float] = {}

    # --- rolling out

    async def rollout(
        self,
        keys: Sequence[int],
        incarnation: int,
        on_group: Callable[[int], None],
        batch_known: Callable[[Callable[[], None]], None] = lambda _cancel: None,
    ) -> RolloutResult:
        """Finish a group for each key, or give it up: from the journal if it is there, else sampled by
        whatever weights are live.

        `on_group` hears of each key once its group is durable and in the data plane; `batch_known` gets what
        cancels this call. Raises Cancelled, the DataFault of one prompt too many, InfraFault for what kept
        failing, and whatever engine, journal and data plane raise; groups finished before that stay.
        """
        batch = _Batch(incarnation)
        self._batches.add(batch)
        batch_known(lambda: self._cancel(batch))
        try:
            journaled, given_up = await self._filed(lambda: self._replayed(keys, incarnation))
            done = {group.key: summary(group, replayed=True) for group in journaled}
            for key in done:
                on_group(key)
            for key in keys:
                if key not in done and key not in given_up:
                    batch.tasks[key] = asyncio.create_task(self._finish(key, batch, on_group))
            if batch.cancelled:
                self._cancel(batch)
            await self._all(batch)
            found = {key: task.result() for key, task in batch.tasks.items()}
            done |= {key: made for key, made in found.items() if made is not None}
            return RolloutResult(
                groups=tuple(done[key] for key in keys if key in done),
                dropped=tuple(key for key in keys if key not in done),
                samples_generated=self._engine.samples_generated,
                engine_s=batch.engine_s,
                inflight_s=batch.inflight_s,
            )
        finally:
            async with self._idle:
                self._batches.discard(batch)
                self._idle.notify_all()

    async def end_older(self, incarnation: int) -> None:
        """End what was asked for by an incarnation before this: nothing of it is put anywhere after this."""

        def older() -> list[_Batch]:
            return [batch for batch in self._batches if batch.incarnation < incarnation]

        for batch in older():
            self._cancel(batch)
        async with self._idle:
            await self._idle.wait_for(lambda: not older())
        await self._filed(lambda: None)  # after what was being put when it was cancelled

    async def refill(self, keys: Collection[int]) -> None:
        """Put into the data plane again what is known of these: it had lost it."""

        def put() -> None:
            self._index.refresh()
            groups = self._index.groups(keys)
            self._partition.put([groups[key] for key in sorted(groups)])
            for key in sorted(self._index.tombstones().keys() & set(keys)):
                self._partition.give_up(key)

        await self._filed(put)

    # --- the weights change

    async def switch(self, load: Callable[[], WeightVersion]) -> WeightVersion:
        """Take other weights, as `asynchronous.refit` says, and let go of groups that have become too old."""
        mode = self._asynchronous.refit
        if mode == "drain":
            self._open.clear()
            async with self._idle:
                await self._idle.wait_for(lambda: not self._in_flight)
        try:
            version = await self._engine.switch(load, cut_short=mode == "abort")
        finally:
            self._open.set()
        if self._asynchronous.sampler in ("ready_first", "windowed"):  # whose `evict` says the same
            oldest = version.step - self._asynchronous.max_staleness
            for group in list(self._in_flight.values()):
                if group.start.step < oldest and group.start.incarnation == version.incarnation:
                    self.counters.too_old += 1
                    group.task.cancel(TOO_OLD)
        return version

    async def report(self) -> dict[str, float]:
        """What was done since the last report: see RefitReceipt.metrics."""
        usage, self._usage = self._usage, _Usage(time.monotonic())
        usage.count(len(self._in_flight))
        before, self._reported = self._reported, self._so_far()
        permits = self._asynchronous.inflight(self._spec.grpo.num_prompts_per_step)
        lasted = max(usage.at - usage.since, 1e-9)
        return {
            "rollout_idle": max(0.0, 1.0 - usage.in_flight_s / (permits * lasted)),
            "generation_busy": min(1.0, usage.engine_s / lasted),
            **{name: count - before.get(name, 0.0) for name, count in self._reported.items()},
        }

    def _so_far(self) -> dict[str, float]:
        retries = self.asked.wrong + self.asked.away
        return {"aborted_groups": float(self.counters.too_old), "environment_retries": float(retries)}

    # --- one group

    async def _finish(self, key: int, batch: _Batch, on_group: Callable[[int], None]) -> GroupSummary | None:
        """None: it was given up."""
        async with self._permits:
            await self._open.wait()
            version = self._engine.version
            if version is None:
                raise WeightsMissing("the generator holds no weights: refit", role="generator")
            task = asyncio.current_task()
            assert task is not None
            self._usage.count(len(self._in_flight))
            self._in_flight[key] = _InFlight(key, version, task)
            began = asyncio.get_running_loop().time()
            try:
                await self._filed(lambda: self._partition.begin(key, version.step))
                group = await self._sampled(key, batch)
                made = await asyncio.shield(self._filed(lambda: self._commit(group)))
            except asyncio.CancelledError as cancelled:
                if TOO_OLD not in cancelled.args:
                    raise
                task.uncancel()
                return None  # the trainer finds the same: it throws away what was begun too long ago
            except DataFault as error:
                fault = error
                await self._filed(lambda: self._give_up(key, fault))
                self.counters.given_up += 1
                return None
            finally:
                batch.inflight_s += asyncio.get_running_loop().time() - began
                async with self._idle:
                    self._usage.count(len(self._in_flight))
                    del self._in_flight[key]
                    self._idle.notify_all()
        on_group(key)
        self.counters.mixed += group.version_start != group.version_end
        return made

    async def _sampled(self, key: int, batch: _Batch) -> PromptGroup:
        problem = await self._scored(lambda: self._drawing.problem(key))
        prompt, seeds = self._drawing.encode(problem), self._drawing.seeds(key)
        answered: Answered = await self._engine.generate([prompt] * len(seeds), seeds, self._drawing.params())
        batch.engine_s += answered.engine_s
        self._usage.engine_s += answered.engine_s
        try:
            async with asyncio.TaskGroup() as siblings:
                samples = [
                    siblings.create_task(self._sample(problem, completion, seed))
                    for completion, seed in zip(answered.completions, seeds, strict=True)
                ]
        except BaseExceptionGroup as several:
            raise _first(several) from several
        versions = (answered.version, answered.version)
        return group_of(
            key, batch.incarnation, problem, prompt, versions, [task.result() for task in samples]
        )

    async def _sample(self, problem: Problem, completion: Completion, seed: int) -> Sample:
        score = await self._drawing.score_beside(problem, completion.text, self._scorers)
        return sample_of(completion, score, seed)

    # --- what blocks

    def _replayed(self, keys: Sequence[int], incarnation: int) -> tuple[list[PromptGroup], set[int]]:
        """What is finished, and put into the data plane; and what is given up."""
        self._journal.adopt(incarnation)
        self._index.refresh()
        found, tombstones = self._index.groups(keys), self._index.tombstones()
        groups = [found[key] for key in keys if key in found]
        self._partition.put(groups)
        for key in keys:
            if key in tombstones:
                self._partition.give_up(key)
        return groups, set(tombstones)

    def _commit(self, group: PromptGroup) -> GroupSummary:
        self._journal.append([group])  # durable first: what trains is in the journal
        self._partition.put([group])
        return summary(group, replayed=False)

    def _give_up(self, key: int, fault: DataFault) -> None:
        """Drop the prompt for good, or raise its fault when the run has given up as many as it may."""
        self._index.refresh()
        if len(self._index.tombstones()) >= self._spec.environment.max_dropped:
            raise fault
        _log.warning("prompt %d is given up: %s", key, fault)
        self._journal.drop([key], str(fault))
        self._partition.give_up(key)

    async def _filed(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._files, work)

    async def _scored(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._scorers, work)

    # --- ending

    def _cancel(self, batch: _Batch) -> None:
        batch.cancelled = True
        for task in batch.tasks.values():
            task.cancel()

    async def _all(self, batch: _Batch) -> None:
        """Wait for them; the first that fails ends the others, and is what failed."""
        tasks: Collection[asyncio.Task[GroupSummary | None]] = batch.tasks.values()
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        faults = [error for task in tasks if not task.cancelled() and (error := task.exception())]
        if faults:
            raise faults[0]
        if batch.cancelled or any(task.cancelled() for task in tasks):
            ended = sum(not task.cancelled() for task in tasks)
            raise Cancelled(f"rollout cancelled with {ended} of {len(tasks)} groups finished")

    def close(self) -> None:
        self._files.shutdown(wait=True, cancel_futures=True)
        self._scorers.shutdown(wait=False, cancel_futures=True)


def _first(several: BaseExceptionGroup) -> BaseException:
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
