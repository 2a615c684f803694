"""The Hugging Face export: a stranger's `from_pretrained` gives the trainer's logits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ratchet.checkpoints.export import export_hf
from ratchet.spec.faults import StorageFault

WORDS = {word: index for index, word in enumerate(["<eos>", "<unk>", "1", "2", "+", "="])}


def small_model(tied: bool) -> PreTrainedModel:
    torch.manual_seed(5)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
        )
    ).eval()


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    inner = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    folder = tmp_path / "base"
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>").save_pretrained(
        folder
    )
    (folder / "model.safetensors").write_bytes(b"the base model's weights")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_the_export_loads_and_gives_equal_logits(tmp_path: Path, tokenizer_folder: Path, tied: bool) -> None:
    model = small_model(tied)
    export_hf(model, tokenizer_folder, tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.dtype == torch.float32
    tokens = AutoTokenizer.from_pretrained(tmp_path / "hf")("1 + 2 =", return_tensors="pt").input_ids
    assert tokens.tolist() == [[2, 4, 3, 5]]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)
    assert not (tmp_path / "hf/model.safetensors.index.json").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_a_snapshot_is_exported_while_the_model_moves_on(
    tmp_path: Path, tokenizer_folder: Path, tied: bool
) -> None:
    model = small_model(tied)
    snapshot = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    tokens = torch.tensor([[2, 4, 3, 5]])
    with torch.no_grad():
        expected = model(tokens).logits
        for parameter in model.parameters():
            parameter.add_(1.0)
    export_hf(model, tokenizer_folder, tmp_path / "hf", snapshot)
    with torch.no_grad():
        assert torch.equal(
            AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()(tokens).logits, expected
        )


FULL_DISK = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_export as case
from ratchet.spec.faults import StorageFault

model = case.small_model(True)
messages = []
for limit in (2000, 5000):  # config.json (about 1 kB) passes, the weights do not
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        case.export_hf(model, Path(sys.argv[1]), Path(sys.argv[2]))
    except StorageFault as fault:
        messages.append(str(fault))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(messages))
"""


def test_a_full_disk_is_a_storage_fault(tmp_path: Path, tokenizer_folder: Path) -> None:
    arguments = [str(tokenizer_folder), str(tmp_path / "hf"), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    messages = json.loads(done.stdout)
    assert len(messages) == 2
    assert all("free space" in message and str(tmp_path) in message for message in messages), messages


def test_a_missing_tokenizer_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFault, match=r"tokenizer folder .*/nowhere: no such file"):
        export_hf(small_model(True), tmp_path / "nowhere", tmp_path / "hf")
