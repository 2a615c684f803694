"""Classes that a spec names by where they are: `module:Class`."""

import difflib
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from ratchet.spec.problems import InvalidSpec, SpecProblem, written


def load_class(key: str, name: str, *, allowed: str, known: Iterable[str] = ()) -> Callable[..., Any]:
    """The class that `module:Class` names. Raises InvalidSpec for `key`, with the nearest name that there is:
    one of `known` if this one has no colon."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        hint = nearest(module, known)
        raise InvalidSpec([SpecProblem(key=key, found=written(name), allowed=allowed, hint=hint)])
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        found = f"{written(name)}, but importing {module} fails with {type(error).__name__}: {error}"
        hint = "put it on the PYTHONPATH of the stack"
        raise InvalidSpec([SpecProblem(key=key, found=found, hint=hint)]) from error
    factory = getattr(loaded, attribute, None)
    if not callable(factory):
        found = f"{written(name)}, but {module} has no class {attribute}"
        raise InvalidSpec([SpecProblem(key=key, found=found, hint=nearest(attribute, dir(loaded)))])
    return factory


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean a or b?`, or nothing when no known word is near."""
    close = difflib.get_close_matches(word, list(known))
    return f"did you mean {' or '.join(close)}?" if close else ""
