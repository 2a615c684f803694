"""Files of the server that a spec names: only below allowed folders. Where these are set, it names only such
variables of the environment as are meant for it: what they hold goes to an address that the spec names too.

Looked at before anything of a spec is looked up: even whether a file is there, or how its first line reads,
is nobody's business who may not name it.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from ratchet.models.names import is_folder
from ratchet.spec.problems import InvalidSpec, SpecProblem
from ratchet.spec.reporting import paths_of, secrets_of
from ratchet.spec.run_spec import RunSpec

SECRET_PREFIX = "RATCHET_SECRET_"


def check_roots(spec: RunSpec, roots: tuple[Path, ...] | None) -> None:
    """Raises InvalidSpec with every path that is none or lies outside, and every variable without the prefix;
    `roots`: None allows all. Links are followed."""
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
    for key, secret in secrets_of(spec.metrics, spec.notify):
        if roots is not None and secret.env and not secret.env.startswith(SECRET_PREFIX):
            allowed = f"a variable that begins with {SECRET_PREFIX}"
            yield SpecProblem(key=f"{key}.env", found=secret.env, allowed=allowed)


def _paths(spec: RunSpec) -> Iterator[tuple[str, str]]:
    if is_folder(spec.policy.model):
        yield "policy.model", spec.policy.model
    yield from paths_of(spec.metrics)
    for key, secret in secrets_of(spec.metrics, spec.notify):
        if secret.file:
            yield f"{key}.file", secret.file
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
