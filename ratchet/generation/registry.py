"""Which generator a run spec asks for. Light to import: a backend's module is loaded when it is chosen."""

import difflib
import importlib

from ratchet.generation.protocol import Generator
from ratchet.spec.loading import InvalidSpec, SpecProblem
from ratchet.spec.run_spec import RunSpec

_BACKENDS = {"hf": "ratchet.generation.hf:HfGenerator"}


def create_generator(spec: RunSpec) -> Generator:
    """The generator of `generation.backend`: a known name, or `module:Class`, called with the spec.

    Raises SpecError, naming the nearest known backend, if there is no such thing.
    """
    name = spec.generation.backend
    target = _BACKENDS.get(name, name)
    module, colon, attribute = target.partition(":")
    if not (module and colon and attribute):
        raise _unknown(f"unknown backend {name!r}", name)
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise _unknown(f"{name!r} cannot be imported ({error})", name) from error
    except AttributeError:
        raise _unknown(f"module {module} has no {attribute}", name) from None
    return factory(spec)


def _unknown(found: str, name: str) -> InvalidSpec:
    close = difflib.get_close_matches(name, _BACKENDS, n=1, cutoff=0.4)
    return InvalidSpec(
        [
            SpecProblem(
                key="generation.backend",
                found=found,
                allowed=", ".join([*_BACKENDS, "module:Class"]),
                hint=f"did you mean {close[0]}?" if close else "",
            )
        ]
    )
