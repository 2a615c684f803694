"""Names that a key of the run spec may have."""

import importlib
import sys
from pathlib import Path

import pytest

from ratchet.spec.faults import SpecError
from ratchet.spec.registry import Registry


@pytest.fixture
def registry() -> Registry:
    return Registry("policy.backend", "ratchet.tests", {"ordered": "collections:OrderedDict"})


def test_a_name_of_its_own_a_registered_one_and_a_path(registry: Registry) -> None:
    registry.register("counter", "collections:Counter")
    registry.register("made", dict)
    assert registry.names() == ["counter", "made", "ordered"]
    names = ("ordered", "counter", "made", "collections:ChainMap")
    assert [registry.load(name).__name__ for name in names] == ["OrderedDict", "Counter", "dict", "ChainMap"]


def test_a_name_is_taken_once(registry: Registry) -> None:
    registry.register("ordered", "collections:OrderedDict")  # the same again is no harm
    with pytest.raises(ValueError, match="ordered is collections:OrderedDict already"):
        registry.register("ordered", "collections:Counter")
    with pytest.raises(ValueError, match="a name has no colon"):
        registry.register("a:b", "collections:Counter")


def test_an_unknown_name_lists_what_there_is(registry: Registry) -> None:
    registry.register("counter", "collections:Counter")
    with pytest.raises(SpecError, match=r"policy\.backend: .*counter, ordered, module:Class.*mean counter\?"):
        registry.load("countr")


def test_an_installed_package_adds_names_by_an_entry_point(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package as pip leaves it, found by what importlib finds."""
    (tmp_path / "theirs.py").write_text("class Trainer: pass\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ratchet.tests]\ntheirs = theirs:Trainer\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert registry.names() == ["ordered", "theirs"]
    assert "theirs" not in sys.modules
    assert registry.load("theirs").__name__ == "Trainer"
