"""Preparing a model: once, whole or not at all, by one process at a time, within a deadline."""

import functools
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.models import hub, tiny
from ratchet.models.prepare import prepare_model
from ratchet.spec.faults import InfraFault, SpecError, StorageFault
from ratchet.spec.home import Home

KILLED_MID_BUILD = """
import os, signal, sys
from ratchet.models import tiny
from ratchet.models.prepare import prepare_model
from ratchet.spec.home import Home

def build(folder):
    (folder / "config.json").write_text("{}")
    os.kill(os.getpid(), signal.SIGKILL)

tiny.build_tiny = build
prepare_model("tiny", Home(sys.argv[1]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Builds of `tiny` without its training; the list tells what was built."""
    built: list[Path] = []
    build = functools.partial(tiny.build_tiny, sft_steps=0)
    monkeypatch.setattr(tiny, "build_tiny", lambda folder: (built.append(folder), build(folder)))
    return built


def test_a_model_is_built_once_and_loads(home: Home, builds: list[Path]) -> None:
    folder = prepare_model("tiny", home)
    assert folder.parent == home.models
    assert prepare_model("tiny", home) == folder
    assert len(builds) == 1
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)


def test_another_recipe_is_another_folder(
    home: Home, builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_model("tiny", home)
    monkeypatch.setattr(tiny, "SEED", 1)
    assert prepare_model("tiny", home) != folder
    assert len(builds) == 2


def test_several_callers_share_one_build(home: Home, builds: list[Path]) -> None:
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: prepare_model("tiny", home), range(3)))
    assert len(folders) == 1
    assert len(builds) == 1


def test_a_builder_killed_half_way_leaves_nothing_that_counts(home: Home, builds: list[Path]) -> None:
    command = [sys.executable, "-c", KILLED_MID_BUILD, str(home.root)]
    assert subprocess.run(command, timeout=90, check=False).returncode == -9
    assert not list(home.models.glob("tiny-*/"))
    folder = prepare_model("tiny", home)
    AutoModelForCausalLM.from_pretrained(folder)
    assert [entry.name for entry in home.models.iterdir() if entry.is_dir()] == [folder.name]


def test_a_build_that_fails_leaves_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        (folder / "config.json").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tiny, "build_tiny", full)
    with pytest.raises(StorageFault, match="No space left on device"):
        prepare_model("tiny", home)
    assert not [entry for entry in home.models.iterdir() if entry.is_dir()]


def test_waiting_for_another_builder_has_an_end(
    home: Home, builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(prepare_model("tiny", home))
    (lock,) = home.models.glob("*.lock")
    monkeypatch.setattr("ratchet.models.prepare.MODEL_PREPARE", 0.1)
    with FileLock(lock), pytest.raises(InfraFault, match="another process"):
        prepare_model("tiny", home)


def test_a_folder_is_taken_as_it_is(home: Home, builds: list[Path]) -> None:
    folder = prepare_model("tiny", home)
    assert prepare_model(str(folder), Home(home.root / "other")) == folder
    (folder / "config.json").unlink()
    with pytest.raises(SpecError, match=r"policy\.model: .* has no config\.json"):
        prepare_model(str(folder), home)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hf"
    monkeypatch.setenv("HF_HOME", str(cache))
    for variable in ("HF_HUB_CACHE", "HF_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    return cache / "hub"


def test_a_hub_model_in_the_cache_works_offline(
    home: Home, builds: list[Path], hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = hub_cache / "models--acme--adder"
    shutil.copytree(prepare_model("tiny", home), repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    folder = prepare_model("acme/adder", home)
    assert folder.parent == home.models
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    # The cache is cleared: the links dangle, and the next call asks the hub again.
    shutil.rmtree(repository)
    with pytest.raises(SpecError, match="acme/adder cannot be downloaded"):
        prepare_model("acme/adder", home)


def test_a_hub_model_that_cannot_be_had_says_what_to_do(
    home: Home, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SpecError, match=r"policy\.model: acme/adder cannot be downloaded.*give its folder"):
        prepare_model("acme/adder", home)
    assert not [entry for entry in home.models.iterdir() if entry.is_dir()]


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections (in the kernel's backlog) and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_download_has_a_deadline(
    tmp_path: Path, hub_cache: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", silent_server)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(SpecError, match="not finished after 2 s"):
        hub.build_from_hub("acme/adder", tmp_path, deadline=2.0)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_smollm2_comes_out_of_its_wheel(home: Home) -> None:
    pytest.importorskip("gguf")
    folder = prepare_model("smollm2-135m", home)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert model.config.tie_word_embeddings
    assert not hasattr(model.config, "quantization_config")
    prompt = tokenizer("3 + 4 = 7\n12 + 5 = 17\n8 + 1 =", return_tensors="pt")
    output = model.generate(**prompt, do_sample=False, max_new_tokens=3)
    assert tokenizer.decode(output[0]).splitlines()[2] == "8 + 1 = 9"
