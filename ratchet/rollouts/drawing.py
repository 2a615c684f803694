"""What a prompt group is made of, whoever makes it: its problem, its prompt, its seeds, its scores."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import cast

import numpy as np

from ratchet.environments.protocol import Environment, Problem, Score
from ratchet.generation.protocol import Completion, Generator, SamplingParams
from ratchet.rollouts.asking import Asked, Asking
from ratchet.rollouts.group import PromptGroup, Sample, Tokens
from ratchet.rollouts.seeds import sample_seed
from ratchet.spec.faults import DataFault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What a receipt needs to know of a finished group."""

    key: int
    replayed: bool
    """It was in the journal already and was not generated again."""
    rewards: tuple[float, ...]
    num_tokens: int
    truncated: int
    """Samples that ended by length."""
    correct: int
    """Samples with a correct answer."""


class Drawing:
    """Everything that does not depend on when, or beside what, a group is made. Raises DataFault for a prompt
    that cannot be worked on."""

    def __init__(self, spec: RunSpec, generator: Generator, environment: Environment) -> None:
        self._spec = spec
        self._generator = generator
        self._environment = environment
        self.asked = Asked()

    def problem(self, key: int) -> Problem:
        asking = Asking(self._spec.environment, f"problem for prompt {key}", self.asked)
        return asking.until(lambda: self._environment.train_problem(key))

    def encode(self, problem: Problem) -> Tokens:
        prompt = self._generator.encode(problem.prompt)
        longest = self._spec.policy.max_total_sequence_length - self._spec.generation.max_new_tokens
        if not 1 <= len(prompt) <= longest:
            raise DataFault(
                f"the prompt of problem {problem.id} has {len(prompt)} tokens, where 1 to {longest} fit: "
                "raise policy.max_total_sequence_length, or choose other environment.options"
            )
        return prompt

    def seeds(self, key: int) -> list[int]:
        width = self._spec.grpo.num_generations_per_prompt
        return [sample_seed(self._spec.seed, key, sample) for sample in range(width)]

    def params(self, *, greedy: bool = False) -> SamplingParams:
        settings = self._spec.generation
        if greedy:
            return SamplingParams(
                max_new_tokens=settings.max_new_tokens, temperature=0.0, stop_strings=settings.stop_strings
            )
        return SamplingParams(
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            stop_strings=settings.stop_strings,
        )

    def scores(self, answers: Sequence[tuple[Problem, str]]) -> Iterator[Score | DataFault]:
        """Of each answer, or why it has none: beside each other where the environment waits for something,
        else one after the other as they are asked for. Raises what else the environment raises."""
        if inspect.iscoroutinefunction(self._environment.score):
            found: Iterable[Score | BaseException] = asyncio.run(self._scored_together(answers))
        else:
            found = (self._scored(problem, text) for problem, text in answers)
        for score in found:
            if isinstance(score, BaseException) and not isinstance(score, DataFault):
                raise score
            yield score

    def _scored(self, problem: Problem, text: str) -> Score | DataFault:
        try:
            return self._asking(problem).until(
                lambda: self.accepted(problem, self._environment.score(problem, text))
            )
        except DataFault as fault:
            return fault

    async def _scored_together(self, answers: Sequence[tuple[Problem, str]]) -> list[Score | BaseException]:
        scores = (self.score_beside(problem, text) for problem, text in answers)
        return await asyncio.gather(*scores, return_exceptions=True)

    async def score_beside(self, problem: Problem, text: str, blocking: Executor | None = None) -> Score:
        """The score of one answer, beside others. An environment whose `score` blocks has it called in
        `blocking`. Raises what `scores` yields, or raises."""

        async def ask() -> Score:
            if inspect.iscoroutinefunction(self._environment.score):
                score = await cast("Awaitable[Score]", self._environment.score(problem, text))
            else:
                loop = asyncio.get_running_loop()
                score = await loop.run_in_executor(blocking, self._environment.score, problem, text)
            return self.accepted(problem, score)

        return await self._asking(problem).answered(ask)

    def _asking(self, problem: Problem) -> Asking:
        return Asking(self._spec.environment, f"score for an answer to {problem.id}", self.asked)

    def accepted(self, problem: Problem, score: Score) -> Score:
        """A score as the environment gave it. Raises DataFault for one that is no number."""
        if not math.isfinite(score.reward):
            raise DataFault(
                f"environment {self._spec.environment.name} scored an answer to {problem.id} with "
                f"{score.reward}: a reward must be a finite number, so mend its `score`"
            )
        return score


def sample_of(completion: Completion, score: Score, seed: int) -> Sample:
    return Sample(
        tokens=completion.tokens,
        logprobs=completion.logprobs,
        mask=np.ones(len(completion.tokens), dtype=np.uint8),
        finish_reason=completion.finish_reason,
        text=completion.text,
        reward=score.reward,
        rewards=score.components or {"reward": score.reward},
        correct=score.correct,
        seed=seed,
    )


def group_of(
    key: int,
    incarnation: int,
    problem: Problem,
    prompt: Tokens,
    versions: tuple[WeightVersion, WeightVersion],
    samples: Sequence[Sample],
) -> PromptGroup:
    """`versions`: the weights that sampled its first and its last token."""
    return PromptGroup(
        key=key,
        incarnation=incarnation,
        problem_id=problem.id,
        prompt=prompt,
        version_start=versions[0],
        version_end=versions[1],
        samples=tuple(samples),
    )


def summary(group: PromptGroup, *, replayed: bool) -> GroupSummary:
    samples = group.samples
    return GroupSummary(
        key=group.key,
        replayed=replayed,
        rewards=tuple(sample.reward for sample in samples),
        num_tokens=sum(len(sample.tokens) for sample in samples),
        truncated=sum(sample.finish_reason == "length" for sample in samples),
        correct=sum(sample.correct for sample in samples),
    )
