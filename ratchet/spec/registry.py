"""Backends by name: those that come with Ratchet, those of installed packages, and `module:Class`."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from ratchet.spec.imports import load_class
from ratchet.spec.problems import InvalidSpec, SpecProblem, written


class Registry:
    """What a key of the run spec may name. Nothing is imported before it is asked for."""

    def __init__(self, key: str, group: str, builtin: Mapping[str, str]) -> None:
        """`group`: of the entry points by which packages add names. `builtin`: name -> `module:Class`."""
        self._key, self._group = key, group
        self._known: dict[str, str | Callable[..., Any]] = dict(builtin)

    def register(self, name: str, factory: str | Callable[..., Any]) -> None:
        """Add a name in this process: `module:Class`, or what is to be called. Raises ValueError if the name
        is taken by something else, or could be taken for a path."""
        if not name or ":" in name:
            raise ValueError(f"{self._key} cannot be named {name!r}: a name has no colon")
        if self._known.get(name, factory) != factory:
            raise ValueError(f"{self._key}: {name} is {self._known[name]} already")
        self._known[name] = factory

    def names(self) -> list[str]:
        """Every name there is, sorted."""
        return sorted({*self._known, *(point.name for point in entry_points(group=self._group))})

    def check(self, name: str) -> None:
        """Raises InvalidSpec for a name that there is not, and imports nothing: whether a class is where its
        path says, only those know who load it."""
        if ":" not in name and name not in self.names():
            self.load(name)

    def load(self, name: str) -> Callable[..., Any]:
        """What the name stands for. Raises InvalidSpec for the key: with what there is, the nearest name, or
        what is missing."""
        target = self._known.get(name)
        if target is None:
            target = next((point.value for point in entry_points(group=self._group, name=name)), name)
        if not isinstance(target, str):
            return target
        try:
            known = self.names()
            return load_class(self._key, target, allowed=", ".join([*known, "module:Class"]), known=known)
        except InvalidSpec as error:
            missing = error.__cause__
            if not isinstance(missing, ModuleNotFoundError):
                raise
            package = (missing.name or target).partition(".")[0]
            found = f"{written(name)}, which needs the Python module {package}"
            hint = f"pip install {package}, or put it on the PYTHONPATH of the stack"
            raise InvalidSpec([SpecProblem(key=self._key, found=found, hint=hint)]) from missing
