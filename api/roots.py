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
    """Raises InvalidSpec with every path that is none or lies outside; `roots`: None allows all. Links are
    followed."""
    if problems := list(_problems(spec, roots)):
        raise InvalidSpec(problems)


def _problems(spec: RunSpec, roots: tuple[Path, ...] | None) -> Iterator[SpecProblem]:
    for key, text in _paths(spec):
        try:
            path = Path(text).expanduser().resolve()
        except (ValueError, RuntimeError, OSError) as error:  # a NUL in it, nobody's home, links in a circle
            yield SpecProblem(key=key, found=repr(text), allowed=f"a path ({error})")
            continue
        if roots is not None and not any(path.is_relative_to(root) for root in roots):
            below = ", ".join(map(str, roots))
            allowed = (
                f"a path below {below}" if below else "no files of the server (`python -m api --allow-root`)"
            )
            yield SpecProblem(key=key, found=text, allowed=allowed)


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
