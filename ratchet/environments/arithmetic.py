"""Few-shot arithmetic: `12 + 5 = 17`, scored on the exact first line."""

import string
from collections.abc import Mapping
from typing import Annotated, Literal, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ratchet.environments.options import SECTION, parse_options, too_few_heldout
from ratchet.environments.protocol import Problem, Score
from ratchet.spec.problems import InvalidSpec, SpecProblem

Operator = Literal["+", "-", "*"]

EXAMPLES: tuple[tuple[int, int], ...] = ((3, 4), (12, 5), (8, 5), (7, 13), (9, 2), (11, 14))
"""Operands of the worked examples, in the order they are shown; none is held out under any operator."""

ENUMERATED = 100_000
"""Ranges up to this many problems are listed in full to find the held-out ones; larger ones are sampled."""
HELDOUT_SAMPLED = 4_096
"""Held-out problems that are drawn from a range too large to list."""


def is_heldout(a: int, b: int, operator: str) -> bool:
    """Whether a problem belongs to the held-out tenth: fixed for all seeds, so that whatever trained on the
    other nine tenths has never seen it."""
    return xxhash.xxh64_intdigest(f"{a}{operator}{b}".encode()) % 10 == 0


class ArithmeticOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    min_operand: int = 0
    """Smallest operand, inclusive."""
    max_operand: int = 99
    """Largest operand, inclusive."""
    operators: tuple[Operator, ...] = ("+",)
    """Any of `+`, `-`, `*`."""
    shots: Annotated[int, Field(ge=0, le=len(EXAMPLES))] = 2
    """Worked examples in front of the question, one a line."""
    template: str = "{a} {op} {b} ="
    """How a question is written; its fields are {a}, {op} and {b}, once each."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_operand > self.max_operand:
            raise ValueError(
                f"min_operand ({self.min_operand}) is above max_operand ({self.max_operand}): exchange them"
            )
        if not self.operators or len(set(self.operators)) != len(self.operators):
            raise ValueError(f"operators {list(self.operators)} must name at least one, and none twice")
        if _fields(self.template) != ["a", "b", "op"]:
            raise ValueError(
                f"template {self.template!r} must hold {{a}}, {{op}} and {{b}} once each, and no other field"
            )
        return self


class ArithmeticEnvironment:
    """Every (a, operator, b) of a range; the seed orders training and held-out problems."""

    def __init__(self, options: Mapping[str, object], seed: int) -> None:
        self._options = parse_options(ArithmeticOptions, options)
        self._seed = seed
        self._width = self._options.max_operand - self._options.min_operand + 1
        self._total = self._width * self._width * len(self._options.operators)
        self._preamble = self._worked_examples()
        self._heldout = self._choose_heldout()
        if len(self._heldout) == self._total:
            found = f"all {self._total} problems of this range are held out, so none is left to train on"
            hint = "raise max_operand or add operators"
            raise InvalidSpec([SpecProblem(key=SECTION, found=found, hint=hint)])

    @property
    def num_heldout(self) -> int:
        return len(self._heldout)

    def train_problem(self, position: int) -> Problem:
        attempt = 0
        while is_heldout(*(terms := self._drawn("train", position, attempt))):
            attempt += 1
        return self._problem(*terms)

    def heldout_problem(self, index: int) -> Problem:
        if index >= self.num_heldout:
            raise too_few_heldout(
                index + 1, self.num_heldout, f"raise {SECTION}.max_operand or add to {SECTION}.operators"
            )
        return self._problem(*self._heldout[index])

    def score(self, problem: Problem, text: str) -> Score:
        correct = text.partition("\n")[0].strip() == problem.answer
        reward = 1.0 if correct else 0.0
        return Score(reward=reward, correct=correct, components={"exact": reward})

    def _problem(self, a: int, b: int, operator: Operator) -> Problem:
        return Problem(
            id=f"{a}{operator}{b}",
            prompt=self._preamble + self._question(a, b, operator),
            answer=str(_answer(a, b, operator)),
        )

    def _question(self, a: int, b: int, operator: Operator) -> str:
        return self._options.template.format(a=a, b=b, op=operator)

    def _worked_examples(self) -> str:
        operators = self._options.operators
        # Answers follow the template's own spacing: "1 + 2 = 3", but "1+2=3".
        space = " " if " " in self._options.template else ""
        lines: list[str] = []
        for i, (a, b) in enumerate(EXAMPLES[: self._options.shots]):
            operator = operators[i % len(operators)]
            lines.append(f"{self._question(a, b, operator)}{space}{_answer(a, b, operator)}\n")
        return "".join(lines)

    def _terms(self, index: int) -> tuple[int, int, Operator]:
        """The problem at an index of [0, total)."""
        index, b = divmod(index, self._width)
        operator, a = divmod(index, self._width)
        low = self._options.min_operand
        return low + a, low + b, self._options.operators[operator]

    def _drawn(self, space: str, position: int, attempt: int = 0) -> tuple[int, int, Operator]:
        draw = xxhash.xxh3_64_intdigest(f"arithmetic/{space}/{self._seed}/{position}/{attempt}".encode())
        return self._terms(draw % self._total)

    def _choose_heldout(self) -> list[tuple[int, int, Operator]]:
        """Distinct held-out problems, in the seed's order."""
        if self._total > ENUMERATED:
            chosen: dict[tuple[int, int, Operator], None] = {}
            position = 0
            while len(chosen) < HELDOUT_SAMPLED:
                terms = self._drawn("heldout", position)
                position += 1
                if is_heldout(*terms):
                    chosen[terms] = None
            return list(chosen)

        def rank(terms: tuple[int, int, Operator]) -> int:
            return xxhash.xxh3_64_intdigest(f"arithmetic/heldout/{self._seed}/{terms}".encode())

        every = map(self._terms, range(self._total))
        return sorted((terms for terms in every if is_heldout(*terms)), key=rank)


def _answer(a: int, b: int, operator: Operator) -> int:
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b


def _fields(template: str) -> list[str]:
    """Sorted fields of a format string; one with a format or conversion of its own is no known field."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        return []
    return sorted(
        f"{name}{spec or ''}{conversion or ''}" for _, name, spec, conversion in parts if name is not None
    )
