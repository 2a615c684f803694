"""Trainer backends by name. Importing this imports none of them."""

from importlib import import_module
from typing import cast

from ratchet.policy.protocol import PolicyTrainer
from ratchet.spec.faults import SpecError
from ratchet.spec.run_spec import RunSpec

BACKENDS = {"torch": "ratchet.policy.torch_trainer:TorchTrainer"}
"""Name -> `module:Class`, called with the run spec."""


def create_trainer(spec: RunSpec) -> PolicyTrainer:
    """The trainer that `policy.backend` names: one of BACKENDS, or `module:Class`. It has no model yet.

    Raises SpecError naming policy.backend, what was found, and what is allowed or what to install.
    """
    if spec.mode == "generation_benchmark":
        return cast(PolicyTrainer, import_module("ratchet.policy.idle").IdleTrainer(spec))
    backend = spec.policy.backend
    module_name, _, class_name = BACKENDS.get(backend, backend).partition(":")
    if not (module_name and class_name):
        raise SpecError(f"policy.backend is {backend!r}: allowed are {', '.join(BACKENDS)}, or module:Class")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = (error.name or module_name).partition(".")[0]
        raise SpecError(
            f"policy.backend is {backend!r}, which needs the Python module {missing}: pip install {missing}"
        ) from error
    factory = getattr(module, class_name, None)
    if not callable(factory):
        raise SpecError(f"policy.backend is {backend!r}: {module_name} has no class {class_name}")
    return cast(PolicyTrainer, factory(spec))
