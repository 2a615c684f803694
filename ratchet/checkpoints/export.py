"""Export a policy in the Hugging Face layout."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from ratchet.artifacts.durable import storage_faults
from ratchet.spec.faults import StorageFault

_TOKENIZER_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken")


def export_hf(
    model: PreTrainedModel,
    tokenizer_folder: Path,
    target: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Make `target` a folder that `from_pretrained` loads: float32 safetensors, config and tokenizer.

    `weights` (name -> tensor, as in `model.state_dict()`) takes the place of the model's own, so that a
    snapshot can be exported while the model trains on. Raises StorageFault.
    """
    with storage_faults(tokenizer_folder, "read tokenizer folder"):
        companions = [path for path in sorted(tokenizer_folder.iterdir()) if _is_tokenizer_file(path)]
    source = model.state_dict() if weights is None else weights
    single = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in source.items()}
    with storage_faults(target, "export to"):
        try:
            model.save_pretrained(target, state_dict=single)
        except SafetensorError as error:  # not an OSError, whatever the system said
            raise StorageFault(
                f"cannot export to {target}: {error}; free space there, or move RATCHET_HOME"
            ) from error
        for path in companions:
            if not (target / path.name).exists():  # config.json is the model's own
                shutil.copyfile(path, target / path.name)


def _is_tokenizer_file(path: Path) -> bool:
    return path.suffix in _TOKENIZER_SUFFIXES and not path.name.endswith(".index.json") and path.is_file()
