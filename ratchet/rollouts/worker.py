"""Finishing prompt groups: draw, generate, score, journal, hand over."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from ratchet.environments.protocol import Environment, Problem, Score
from ratchet.generation.protocol import Generator
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.drawing import Drawing, GroupSummary, group_of, sample_of, summary
from ratchet.rollouts.group import PromptGroup, Tokens
from ratchet.rollouts.partition import TrainPartition
from ratchet.rollouts.seeds import sample_seed
from ratchet.spec.faults import Cancelled, DataFault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec

_log = logging.getLogger(__name__)

Item = TypeVar("Item")

EVALUATION_CHUNK = 64
"""Held-out problems a batch. Fixed: padding moves logprobs, so the cut must be the same every time."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    groups: tuple[GroupSummary, ...]
    """In the order of the keys asked for."""
    dropped: tuple[int, ...]
    """Keys asked for that were given up, now or before."""
    samples_generated: int
    """The worker's counter after this rollout."""
    engine_s: float
    """Seconds this rollout spent inside the generator."""
    inflight_s: float = 0.0
    """Seconds that its groups were being made, summed over them; 0 where they are not made one by one."""


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A prompt that cannot be worked on."""

    key: int
    fault: DataFault


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    num_problems: int
    accuracy: float
    reward_mean: float
    length_mean: float
    """Tokens a response."""


class RolloutWorker:
    """One generator and everything around it that turns cursor positions into finished groups."""

    def __init__(
        self,
        spec: RunSpec,
        generator: Generator,
        environment: Environment,
        journal: JournalWriter,
        index: JournalIndex,
        partition: TrainPartition,
    ) -> None:
        self._spec = spec
        self._drawing = Drawing(spec, generator, environment)
        self._generator = generator
        self._environment = environment
        self._journal = journal
        self._index = index
        self._partition = partition
        self._samples_generated = 0
        self._engine_s = 0.0

    @property
    def samples_generated(self) -> int:
        """Training samples this worker has generated, over its life; replayed ones are not among them."""
        return self._samples_generated

    def rollout(
        self,
        keys: Sequence[int],
        incarnation: int,
        version: WeightVersion,
        should_stop: Callable[[], bool],
        on_group: Callable[[int], None],
    ) -> RolloutResult:
        """Finish a group for each key, in order: from the journal if it is there, else generated.

        `on_group` hears of each key once its group is durable and in the data plane. A prompt that cannot be
        worked on is given up, with a tombstone in the journal, as long as `environment.max_dropped` allows.
        Raises Cancelled when `should_stop` turns true, the DataFault of one prompt too many, and whatever
        generator, journal and data plane raise; groups finished before that stay finished.
        """
        self._engine_s = 0.0
        self._journal.adopt(incarnation)
        self._index.refresh()
        journaled = self._index.groups(keys)
        summaries: dict[int, GroupSummary] = {}

        def hand_over(groups: Sequence[PromptGroup], *, replayed: bool) -> None:
            self._partition.put(groups)
            for group in groups:
                summaries[group.key] = summary(group, replayed=replayed)
                on_group(group.key)

        hand_over([journaled[key] for key in keys if key in journaled], replayed=True)
        given_up = self._index.tombstones()
        missing = [key for key in keys if key not in journaled and key not in given_up]
        # A group's tokens do not depend on its neighbours if it has none.
        size = 1 if self._spec.generation.deterministic else max(1, len(missing))
        for batch in _chunks(missing, size):
            if should_stop():
                raise Cancelled(f"rollout cancelled with {len(summaries)} of {len(keys)} groups finished")
            finished: list[PromptGroup] = []
            try:
                for outcome in self._generate(batch, incarnation, version, should_stop):
                    if isinstance(outcome, PromptGroup):
                        finished.append(outcome)
                    else:
                        self._give_up(outcome)
            finally:
                # Also those before the one that failed. Durable first: what trains is in the journal.
                self._journal.append(finished)
                hand_over(finished, replayed=False)
        groups = tuple(summaries[key] for key in keys if key in summaries)
        dropped = tuple(key for key in keys if key not in summaries)
        return RolloutResult(groups, dropped, self._samples_generated, self._engine_s)

    def refill(self, keys: Sequence[int]) -> list[int]:
        """Put the groups of `keys` that are journaled into the data plane: those that are not, sorted."""
        self._index.refresh()
        journaled = self._index.groups(keys)
        self._partition.put([journaled[key] for key in sorted(journaled)])
        return sorted(set(keys) - journaled.keys() - self._index.tombstones().keys())

    def evaluate(self, num_problems: int, should_stop: Callable[[], bool] = lambda: False) -> EvaluateResult:
        """Answer the first `num_problems` held-out problems greedily. Journals nothing, moves no cursor.

        Raises SpecError if there are not so many, Cancelled when `should_stop` turns true, and what
        generator and environment raise.
        """
        params = self._drawing.params(greedy=True)
        problems = [self._environment.heldout_problem(index) for index in range(num_problems)]
        scores: list[Score] = []
        num_tokens = 0
        for chunk in _chunks(range(num_problems), EVALUATION_CHUNK):
            completions = self._generator.generate(
                [self._drawing.encode(problems[index]) for index in chunk],
                [sample_seed(self._spec.seed, index, 0, "evaluate") for index in chunk],
                params,
                should_stop,
            )
            answers = [
                (problems[index], completion.text)
                for index, completion in zip(chunk, completions, strict=True)
            ]
            for score in self._drawing.scores(answers):
                if isinstance(score, DataFault):
                    raise score
                scores.append(score)
            num_tokens += sum(len(completion.tokens) for completion in completions)
        return EvaluateResult(
            num_problems=num_problems,
            accuracy=sum(score.correct for score in scores) / num_problems,
            reward_mean=math.fsum(score.reward for score in scores) / num_problems,
            length_mean=num_tokens / num_problems,
        )

    def _give_up(self, prompt: _GivenUp) -> None:
        """Drop the prompt for good, or raise its fault when the run has given up as many as it may."""
        self._index.refresh()
        if len(self._index.tombstones()) >= self._spec.environment.max_dropped:
            raise prompt.fault
        _log.warning("prompt %d is given up: %s", prompt.key, prompt.fault)
        self._journal.drop([prompt.key], str(prompt.fault))

    def _generate(
        self, keys: Sequence[int], incarnation: int, version: WeightVersion, should_stop: Callable[[], bool]
    ) -> Iterator[PromptGroup | _GivenUp]:
        """Generate all samples of `keys` in one batch, then score group by group."""
        problems: list[Problem] = []
        prompts: list[Tokens] = []
        workable: list[int] = []
        for key in keys:
            try:
                problem = self._drawing.problem(key)
                prompts.append(self._drawing.encode(problem))
            except DataFault as fault:
                yield _GivenUp(key, fault)
                continue
            problems.append(problem)
            workable.append(key)
        if not workable:
            return
        seeds = [self._drawing.seeds(key) for key in workable]
        width = len(seeds[0])
        started = time.monotonic()
        completions = self._generator.generate(
            [prompt for prompt in prompts for _ in range(width)],
            [seed for of_group in seeds for seed in of_group],
            self._drawing.params(),
            should_stop,
        )
        self._engine_s += time.monotonic() - started
        self._samples_generated += len(completions)
        of_groups = _chunks(completions, width)
        of_problems = [problem for problem in problems for _ in range(width)]
        texts = [completion.text for completion in completions]
        scores = self._drawing.scores(list(zip(of_problems, texts, strict=True)))
        for key, problem, prompt, of_seeds, of_group in zip(
            workable, problems, prompts, seeds, of_groups, strict=True
        ):
            judged = list(itertools.islice(scores, width))
            if fault := next((score for score in judged if isinstance(score, DataFault)), None):
                yield _GivenUp(key, fault)
                continue
            samples = [
                sample_of(completion, cast("Score", score), seed)
                for completion, score, seed in zip(of_group, judged, of_seeds, strict=True)
            ]
            yield group_of(key, incarnation, problem, prompt, (version, version), samples)


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
