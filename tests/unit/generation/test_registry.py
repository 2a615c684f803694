"""Choosing a generator by name."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from ratchet.generation.registry import create_generator
from ratchet.spec.faults import SpecError
from ratchet.spec.run_spec import RunSpec


def test_known_names_and_module_paths_are_created_with_the_spec(spec: Callable[..., RunSpec]) -> None:
    assert type(create_generator(spec(backend="hf"))).__name__ == "HfGenerator"
    own = create_generator(spec(backend="ratchet.generation.hf:HfGenerator", precision="bfloat16"))
    assert type(own).__name__ == "HfGenerator"


@pytest.mark.parametrize(
    ("backend", "complaint"),
    [
        ("hff", r'generation\.backend: .*"hff".*hf, module:Class.*did you mean hf\?'),
        ("no.such.module:Thing", r"generation\.backend: .*needs the Python module no.*pip install no"),
        ("ratchet.generation.hf:Nope", r"generation\.backend: .*ratchet\.generation\.hf has no class Nope"),
        ("hf:", r'generation\.backend: .*"hf:"'),
    ],
)
def test_anything_else_is_refused_by_name(spec: Callable[..., RunSpec], backend: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        create_generator(spec(backend=backend))


def test_the_registry_is_light_to_import() -> None:
    code = "import sys, ratchet.generation.registry as r; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
