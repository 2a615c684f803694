"""Trainer backends by name. Importing this imports none of them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from ratchet.policy.protocol import PolicyTrainer
from ratchet.spec.backends import TRAINERS
from ratchet.spec.run_spec import RunSpec


def register_trainer(name: str, factory: str | Callable[[RunSpec], PolicyTrainer]) -> None:
    """Add a trainer that `policy.backend` may name, in this process. A package adds one everywhere with an
    entry point of the group `ratchet.trainers`."""
    TRAINERS.register(name, factory)


def create_trainer(spec: RunSpec) -> PolicyTrainer:
    """The trainer that `policy.backend` names, called with the spec. It has no model yet.

    Raises SpecError naming policy.backend, what was found, and what is allowed or what to install.
    """
    if spec.mode == "generation_benchmark":
        return cast(PolicyTrainer, import_module("ratchet.policy.idle").IdleTrainer(spec))
    factory: Any = TRAINERS.load(spec.policy.backend)
    return factory(spec)
