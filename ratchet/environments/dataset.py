"""Your own data: rows of a JSON Lines file, passed over again and again, each pass in another order."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field

from ratchet.environments.options import SECTION, parse_options, too_few_heldout
from ratchet.environments.protocol import Problem, Score
from ratchet.spec.problems import InvalidSpec, SpecProblem, written

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
EPOCHS_KEPT = 4
"""Orders remembered: a batch touches two epochs at most, evaluation none."""


class DatasetOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str
    """A JSON Lines file: an object a line. Every host of the run must see it under this path."""
    prompt_field: str = "prompt"
    """The key of an object that holds what the policy reads."""
    answer_field: str = "answer"
    """The key that holds the right answer."""
    template: str = "{prompt}"
    """How a prompt is written; `{prompt}` stands for the row's own text."""
    match: Literal["exact", "first_line", "last_number"] = "first_line"
    """When a response is right: it is the answer; its first line is; the last number in it is."""
    num_heldout: Annotated[int, Field(ge=0)] = 0
    """Rows at the end of the file that are never trained on."""
    shuffle: bool = True
    """Another order in every pass, by the run's seed; false: the file's order."""
    sha256: str | None = None
    """Digest of the file: a run resumed after somebody edited it is refused, not trained on other rows."""


class DatasetEnvironment:
    """Cursor position p is row order(p // n)[p % n] of n training rows: each pass trains every row once."""

    def __init__(self, options: Mapping[str, object], seed: int) -> None:
        self._options = parse_options(DatasetOptions, options)
        self._seed = seed
        rows = self._read(Path(self._options.path).expanduser())
        count = len(rows) - self._options.num_heldout
        if count < 1:
            found = f"{self._options.num_heldout} of the {len(rows)} rows, which leaves none to train on"
            raise InvalidSpec([SpecProblem(key=f"{SECTION}.num_heldout", found=found, hint="lower it")])
        self._train, self._heldout = rows[:count], rows[count:]
        self._order = lru_cache(EPOCHS_KEPT)(self._ordered)

    @property
    def num_heldout(self) -> int:
        return len(self._heldout)

    def train_problem(self, position: int) -> Problem:
        epoch, index = divmod(position, len(self._train))
        return self._train[self._order(epoch)[index]]

    def heldout_problem(self, index: int) -> Problem:
        if index >= self.num_heldout:
            raise too_few_heldout(index + 1, self.num_heldout, f"raise {SECTION}.num_heldout")
        return self._heldout[index]

    def score(self, problem: Problem, text: str) -> Score:
        correct = self._said(text) == self._plain(problem.answer)
        reward = 1.0 if correct else 0.0
        return Score(reward=reward, correct=correct, components={self._options.match: reward})

    def _said(self, text: str) -> str | None:
        match self._options.match:
            case "exact":
                return text.strip()
            case "first_line":
                return text.partition("\n")[0].strip()
            case "last_number":
                numbers = NUMBER.findall(text)
                return self._plain(numbers[-1]) if numbers else None

    def _plain(self, answer: str) -> str:
        return answer.replace(",", "").strip() if self._options.match == "last_number" else answer.strip()

    def _ordered(self, epoch: int) -> list[int]:
        indices = range(len(self._train))
        if not self._options.shuffle:
            return list(indices)
        # Sorted by hash: the same everywhere, without a random generator whose state would have to be kept.
        return sorted(indices, key=lambda i: xxhash.xxh3_64_intdigest(f"{self._seed}/{epoch}/{i}".encode()))

    def _read(self, path: Path) -> list[Problem]:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self._refused("path", f"{path}: {error.strerror}", "a JSON Lines file") from error
        if self._options.sha256 not in (None, digest := hashlib.sha256(content).hexdigest()):
            raise self._refused("sha256", f"{path} has {digest}: it is not the file the run began with", "")
        lines = content.decode(errors="replace").splitlines()
        return [self._problem(number, line) for number, line in enumerate(lines, 1) if line.strip()]

    def _problem(self, number: int, line: str) -> Problem:
        options = self._options
        try:
            row = json.loads(line)
            prompt, answer = str(row[options.prompt_field]), str(row[options.answer_field])
        except (ValueError, KeyError, TypeError) as error:
            found = (
                f"line {number} of {options.path} is {written(line[:60])} ({type(error).__name__}: {error})"
            )
            wanted = f"a JSON object with {options.prompt_field!r} and {options.answer_field!r}"
            raise self._refused("path", found, wanted) from error
        return Problem(id=f"row-{number}", prompt=options.template.replace("{prompt}", prompt), answer=answer)

    def _refused(self, option: str, found: str, allowed: str) -> InvalidSpec:
        return InvalidSpec([SpecProblem(key=f"{SECTION}.{option}", found=found, allowed=allowed)])
