"""What is wrong with a run spec, in words for the person who wrote it: key, found, allowed, and the fix."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from ratchet.spec.faults import SpecError
from ratchet.spec.run_spec import RunSpec


class SpecProblem(BaseModel):
    """One thing that is wrong with a spec, in words for the person who wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """Dotted key, or the file when the problem is the file's."""
    found: str
    allowed: str = ""
    hint: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.key}: {self.found}{allowed}{hint}"


class InvalidSpec(SpecError):
    """A spec that cannot be run, with every problem that was found."""

    def __init__(self, problems: Sequence[SpecProblem], *, role: str | None = None) -> None:
        super().__init__("; ".join(str(problem) for problem in problems), role=role)
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[object, ...]:
        return (InvalidSpec, (self.problems,))


def explain(error: ValidationError) -> list[SpecProblem]:
    """Every problem pydantic found in a run spec, in our words."""
    problems = [problem for details in error.errors() for problem in _problems(details)]
    # A misspelt required key is one mistake: do not report it as missing as well.
    meant = {problem.hint for problem in problems}
    return [p for p in problems if not (p.found == _MISSING and did_you_mean(p.key) in meant)]


_MISSING = "missing"


def _problems(error: ErrorDetails) -> Iterator[SpecProblem]:
    loc = error["loc"]
    key = ".".join(str(part) for part in loc)
    if error["type"] == "extra_forbidden":
        yield SpecProblem(key=key, found="unknown key", allowed=keys_of(loc[:-1]), hint=_nearest(loc))
    elif error["type"] == "missing":
        schema = _schema_at(loc)
        yield SpecProblem(
            key=key, found=_MISSING, allowed=_describe(schema), hint=first_line(schema.get("description", ""))
        )
    elif error["type"] == "value_error":
        yield from _contradictions(key, error)
    else:
        schema = _schema_at(loc)
        allowed = _describe(schema) or first_line(error["msg"])
        yield SpecProblem(
            key=key, found=written(error["input"]), allowed=allowed, hint=_value_hint(error, schema)
        )


def _contradictions(section: str, error: ErrorDetails) -> Iterator[SpecProblem]:
    """Keys that do not fit together; RunSpec says one a line, as "<key> is <found>: <fix>"."""
    for line in str(error.get("ctx", {}).get("error", error["msg"])).splitlines():
        key, separator, rest = line.partition(" is ")
        if not separator or " " in key:
            yield SpecProblem(key=section or "spec", found=line)
            continue
        found, _, fix = rest.rpartition(": ")
        yield SpecProblem(key=key, found=found or rest, hint=fix if found else "")


def _value_hint(error: ErrorDetails, schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return first_line(schema.get("description", ""))
    choices = [str(choice) for choice in schema.get("enum", ())]
    close = difflib.get_close_matches(str(error["input"]), choices, n=1)
    return did_you_mean(close[0]) if close else ""


def did_you_mean(key: str) -> str:
    """A hint."""
    return f"did you mean {key}?"


def _nearest(loc: tuple[int | str, ...]) -> str:
    """The known key somebody most likely meant: the right name in the wrong section comes first."""
    section, name = ".".join(str(part) for part in loc[:-1]), str(loc[-1])
    leaves = {key: key.rpartition(".")[2] for key in _known_keys()}
    siblings = [key for key in leaves if key.rpartition(".")[0] == section]
    elsewhere = [key for key in leaves if key not in siblings]
    for candidates, cutoff in ((elsewhere, 1.0), (siblings, 0.6), (elsewhere, 0.75)):
        close = difflib.get_close_matches(name, [leaves[key] for key in candidates], n=1, cutoff=cutoff)
        if close:
            return did_you_mean(" or ".join(key for key in candidates if leaves[key] == close[0]))
    return ""


# --- the JSON schema of RunSpec, which knows every key, type and bound


@cache
def _schema() -> dict[str, Any]:
    return RunSpec.model_json_schema()


def _resolve(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a $ref; what stands beside it (the field's docstring) wins."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target: Mapping[str, Any] = _schema()["$defs"][reference.rpartition("/")[2]]
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}


def _section(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section itself, of one that may be left out."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return _resolve(options[0]) if len(options) == 1 and "$ref" in options[0] else schema


def _schema_at(loc: Sequence[int | str]) -> Mapping[str, Any]:
    """The schema of the field at `loc`, or of the nearest field around it."""
    schema: Mapping[str, Any] = _schema()
    for part in loc:
        schema = _section(schema)
        inner: Any = schema.get("properties", {}).get(part)
        if inner is None and isinstance(part, int):
            prefix = schema.get("prefixItems", [])
            inner = prefix[part] if part < len(prefix) else schema.get("items")
        if not isinstance(inner, Mapping):  # `items: true`, or no such key
            return schema
        schema = _resolve(cast(Mapping[str, Any], inner))
    return _section(schema)


@cache
def _known_keys() -> tuple[str, ...]:
    def walk(schema: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, field in schema.get("properties", {}).items():
            yield f"{path}{name}"
            yield from walk(_section(_resolve(field)), f"{path}{name}.")

    return tuple(walk(_schema(), ""))


def keys_of(loc: Sequence[int | str]) -> str:
    """The keys that the section at `loc` knows."""
    keys = ", ".join(_schema_at(loc).get("properties", ()))
    return f"the keys of {'.'.join(map(str, loc))}: {keys}" if loc else f"the sections and keys {keys}"


_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}


def _describe(schema: Mapping[str, Any]) -> str:
    """What a field takes, in words."""
    schema = _resolve(schema)
    if "anyOf" in schema:
        return " or ".join(filter(None, (_describe(option) for option in schema["anyOf"])))
    if "enum" in schema:
        return " | ".join(str(choice) for choice in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "properties" in schema:
        return f"a section with the keys {', '.join(schema['properties'])}"
    kind = schema.get("type")
    if kind == "object":
        return "a mapping"
    if kind == "array":
        return _describe_list(schema)
    words = [f"{sign} {schema[bound]:g}" for bound, sign in _BOUNDS.items() if bound in schema]
    if "pattern" in schema:
        words.append(f"matching {schema['pattern']}")
    return " ".join(filter(None, (_TYPES.get(str(kind), ""), " and ".join(words))))


def _describe_list(schema: Mapping[str, Any]) -> str:
    items = schema.get("prefixItems")
    if items:
        return f"a list of {len(items)}, each {_describe(items[0])}"
    return f"a list, each {_describe(schema.get('items', {}))}"


def written(value: object) -> str:
    """A value as the person wrote it, shortened."""
    if value is None:
        return "nothing (null)"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def first_line(text: str) -> str:
    """The first line of a text, or nothing."""
    return " ".join(text.splitlines()[:1])
