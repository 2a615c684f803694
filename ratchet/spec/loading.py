"""From YAML and `a.b=c` overrides to a RunSpec, with every problem found at once."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from ratchet.spec.problems import (
    InvalidSpec,
    SpecProblem,
    did_you_mean,
    explain,
    first_line,
    keys_of,
    written,
)
from ratchet.spec.run_spec import RunSpec


def load_spec(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read a YAML file and apply `a.b=c` overrides to it. Raises InvalidSpec."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidSpec(
            [SpecProblem(key=str(path), found="no such file", hint=_similar_file(path))]
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
        raise InvalidSpec([SpecProblem(key=str(path), found=reason, allowed="a YAML file")]) from None
    return parse_spec(text, overrides, source=str(path))


def parse_spec(text: str, overrides: Sequence[str] = (), source: str = "spec") -> RunSpec:
    """Like `load_spec`, from text; `source` names it in messages. Raises InvalidSpec."""
    document, problems = _parse_yaml(text, source)
    for override in overrides:
        problems += _apply(document, override)
    try:
        spec = spec_from_mapping(document)
    except InvalidSpec as error:
        raise InvalidSpec([*problems, *error.problems]) from None
    if problems:
        raise InvalidSpec(problems)
    return spec


def spec_from_mapping(mapping: Mapping[str, Any]) -> RunSpec:
    """Validate a mapping. Raises InvalidSpec with every problem, each naming the key and the fix."""
    try:
        return RunSpec.model_validate(mapping)
    except ValidationError as error:
        raise InvalidSpec(explain(error)) from None


# --- YAML


class _Loader(yaml.SafeLoader):
    """YAML 1.1, except that `1e-5` is a number (as in YAML 1.2) and a date is plain text."""


_TIMESTAMP, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
# By the first character of a scalar. YAML 1.1's own patterns come first.
_Loader.yaml_implicit_resolvers = {
    first: [
        *((tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP),
        *([(_FLOAT, _EXPONENT)] if first in "-+.0123456789" else []),
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse_yaml(text: str, source: str) -> tuple[dict[str, Any], list[SpecProblem]]:
    """The document, and the duplicate keys in it (of which YAML would silently keep the last)."""
    try:
        loader: Any = _Loader(text)
        node = loader.get_single_node()
        document: Any = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise InvalidSpec(
            [SpecProblem(key=where, found=f"not YAML: {error.problem or error.context}")]
        ) from None
    except yaml.YAMLError as error:
        raise InvalidSpec([SpecProblem(key=source, found=f"not YAML: {first_line(str(error))}")]) from None
    if not isinstance(document, dict):
        raise InvalidSpec(
            [SpecProblem(key=source, found=written(cast(object, document)), allowed=keys_of(()))]
        )
    return cast(dict[str, Any], document), list(_duplicates(node, (), source, set()))


def _duplicates(
    node: yaml.Node | None, path: tuple[str, ...], source: str, seen: set[int]
) -> Iterator[SpecProblem]:
    if id(node) in seen:  # an alias, which may even point at what is around it
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _duplicates(item, path, source, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        here = (*path, str(key.value))
        if key.value in lines:
            found = f"set twice, on lines {lines[key.value]} and {line} of {source}"
            yield SpecProblem(key=".".join(here), found=found, allowed="each key once", hint="delete one")
        lines[key.value] = line
        yield from _duplicates(value, here, source, seen)


def _apply(document: dict[str, Any], override: str) -> list[SpecProblem]:
    """Put one `a.b=c` into the document."""
    dotted, separator, text = override.partition("=")
    parts = [part.strip() for part in dotted.split(".")]
    if not separator or not all(parts):
        return [SpecProblem(key=f"--set {override}", found="no key=value", allowed="a.b=c, like seed=7")]
    try:
        value: Any = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return [SpecProblem(key=dotted, found=repr(text), allowed="a YAML value", hint="quote it")]
    section = document
    for depth, part in enumerate(parts[:-1], 1):
        inner: Any = section.setdefault(part, {})
        if not isinstance(inner, dict):
            parent = ".".join(parts[:depth])
            return [SpecProblem(key=dotted, found=f"{parent} is {written(inner)}, not a section")]
        section = cast(dict[str, Any], inner)
    section[parts[-1]] = value
    return []


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return f"there is no folder {path.parent} either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return did_you_mean(str(path.parent / close[0])) if close else ""
