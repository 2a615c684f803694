"""Any reasoning-gym task by name: `reasoning-gym:<task>` (Stojanovski et al. 2025, arXiv:2505.24760)."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field

from ratchet.environments.options import SECTION, parse_options, too_few_heldout, unknown_option
from ratchet.environments.protocol import Problem, Score
from ratchet.spec.faults import DataFault
from ratchet.spec.imports import nearest
from ratchet.spec.problems import InvalidSpec, SpecProblem, written

MAX_DRAWS = 1_000
"""Draws for one training position; so many held-out ones in a row mean that there is nothing else."""


class GymOptions(BaseModel):
    """Ratchet's own options; all others go to the task."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    size: Annotated[int, Field(ge=1)] = 10_000
    """Problems in the pool that training and held-out problems are drawn from."""
    answer: Literal["first_line", "whole"] = "first_line"
    """The part of a response that is scored, once surrounding blanks are stripped."""


class GymEnvironment:
    """A pool of `size` problems, parted by a hash of the question: one tenth is held out.

    A few tasks iterate over sets of strings and are the same in every process only under a fixed
    PYTHONHASHSEED; training and held-out questions are disjoint all the same.
    """

    def __init__(self, task: str, options: Mapping[str, object], seed: int) -> None:
        own = {key: value for key, value in options.items() if key in GymOptions.model_fields}
        self._options = parse_options(GymOptions, own)
        self._task = task
        self._seed = seed
        task_options = {key: value for key, value in options.items() if key not in own}
        self._dataset = _create_dataset(task, task_options, self._options.size, seed)
        self._unseen = self._search_heldout()
        self._heldout: list[Problem] = []

    @property
    def num_heldout(self) -> int:
        """Distinct held-out problems of the pool. Walks all of it, which slow tasks make you feel."""
        self._heldout.extend(self._unseen)
        return len(self._heldout)

    def train_problem(self, position: int) -> Problem:
        for attempt in range(MAX_DRAWS):
            problem = self._problem(self._hash("train", position, attempt) % self._options.size)
            if not _is_heldout(problem.prompt):
                return problem
        raise _refusal(
            f"reasoning-gym:{self._task} makes no problem outside the held-out part",
            hint=f"raise {SECTION}.size, or choose options with more distinct questions",
        )

    def heldout_problem(self, index: int) -> Problem:
        while len(self._heldout) <= index:
            problem = next(self._unseen, None)
            if problem is None:
                raise too_few_heldout(index + 1, len(self._heldout), f"raise {SECTION}.size")
            self._heldout.append(problem)
        return self._heldout[index]

    def score(self, problem: Problem, text: str) -> Score:
        answer = text.strip()
        if self._options.answer == "first_line":
            answer = answer.partition("\n")[0].rstrip()
        try:
            reward = float(self._dataset.score_answer(answer, problem.data["entry"]))
        except Exception as error:
            raise DataFault(
                f"reasoning-gym:{self._task} cannot score an answer to problem {problem.id} "
                f"({type(error).__name__}: {error}): leave the task out, or report it to reasoning-gym"
            ) from error
        return Score(reward=reward, correct=reward >= 1.0, components={"score": reward})

    def _problem(self, index: int) -> Problem:
        try:
            entry: dict[str, Any] = self._dataset[index]
        except Exception as error:
            raise DataFault(
                f"reasoning-gym:{self._task} cannot make problem {index} ({type(error).__name__}: {error}): "
                "look at environment.options"
            ) from error
        question: str = entry["question"]
        return Problem(
            id=f"{self._task}/{xxhash.xxh3_64_hexdigest(question.encode())}",
            prompt=question,
            answer=entry["answer"] or "",
            data={"entry": entry},
        )

    def _search_heldout(self) -> Iterator[Problem]:
        """Distinct held-out problems of the pool, in the seed's order."""
        seen: set[str] = set()
        for index in sorted(range(self._options.size), key=lambda index: self._hash("heldout", index)):
            problem = self._problem(index)
            if _is_heldout(problem.prompt) and problem.prompt not in seen:
                seen.add(problem.prompt)
                yield problem

    def _hash(self, space: str, *numbers: int) -> int:
        text = "/".join(map(str, (space, self._seed, *numbers)))
        return xxhash.xxh3_64_intdigest(text.encode())


def _is_heldout(question: str) -> bool:
    return xxhash.xxh64_intdigest(question.encode()) % 10 == 0


def _create_dataset(task: str, options: Mapping[str, object], size: int, seed: int) -> Any:
    name = f"reasoning-gym:{task}"
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ModuleNotFoundError as error:
        found = f"{name} needs the package {error.name}, which is not installed"
        raise _refusal(found, hint="pip install 'ratchet[gym]'", key="environment.name") from None
    if task not in DATASETS:
        found = f"reasoning-gym has no task {task!r} among its {len(DATASETS)}"
        raise _refusal(found, hint=nearest(task, DATASETS), key="environment.name")
    known = {field.name for field in dataclasses.fields(DATASETS[task][1])} - {"seed", "size"}
    wrong = [key for key in options if key not in known]
    if wrong:
        raise InvalidSpec([unknown_option(key, known | set(GymOptions.model_fields)) for key in wrong])
    try:
        # Tasks seed generators that take 32 bits, with seed + index.
        return create_dataset(task, size=size, seed=seed % 2**31, **options)
    except Exception as error:
        found = f"{written(options)} with size {size}, which {name} refuses"
        raise _refusal(found, hint=f"{type(error).__name__}: {error}") from error


def _refusal(found: str, hint: str, key: str = SECTION) -> InvalidSpec:
    return InvalidSpec([SpecProblem(key=key, found=found, hint=hint)])
