"""Files of the server that a spec names: only below allowed folders.

Looked at before anything of a spec is looked up: even whether a file is there, or how its first line reads,
is nobody's business who may not name it.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from ratchet.models.names import is_folder
from ratchet.spec.problems import InvalidSpec, SpecProblem
from ratchet.spec.run_spec import RunSpec


def check_roots(spec: RunSpec, roots: tuple[Path, ...] | None) -> None:
    """Raises InvalidSpec with every path that lies outside; `roots`: None allows all. Links are followed."""
    if roots is None:
        return
    allowed = ", ".join(map(str, roots)) or "no files of the server (see `python -m api --allow-root`)"
    problems = [
        SpecProblem(key=key, found=path, allowed=f"a path below {allowed}" if roots else allowed)
        for key, path in _paths(spec)
        if not any(Path(path).expanduser().resolve().is_relative_to(root) for root in roots)
    ]
    if problems:
        raise InvalidSpec(problems)


def _paths(spec: RunSpec) -> Iterator[tuple[str, str]]:
    if is_folder(spec.policy.model):
        yield "policy.model", spec.policy.model
    # `path` is one whatever it looks like; an environment of one's own may call its files anything.
    for key, value in spec.environment.options.items():
        for text in _texts(value):
            if key == "path" or text.startswith(("/", "./", "../", "~")):
                yield f"environment.options.{key}", text


def _texts(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)
        case _:
            pass
