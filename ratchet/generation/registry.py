"""Generators by name. Light to import: a backend's module is loaded when it is chosen."""

from collections.abc import Callable
from typing import Any

from ratchet.generation.protocol import Generator
from ratchet.spec.backends import GENERATORS
from ratchet.spec.run_spec import RunSpec


def register_generator(name: str, factory: str | Callable[[RunSpec], Generator]) -> None:
    """Add a generator that `generation.backend` may name, in this process. A package adds one everywhere with
    an entry point of the group `ratchet.generators`."""
    GENERATORS.register(name, factory)


def create_generator(spec: RunSpec) -> Generator:
    """The generator that `generation.backend` names, called with the spec.

    Raises SpecError naming generation.backend, what was found, and what is allowed or what to install.
    """
    factory: Any = GENERATORS.load(spec.generation.backend)
    return factory(spec)
