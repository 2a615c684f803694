"""Loading a causal language model from a folder, with everything that is wrong with it said at once."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ratchet.spec.faults import SpecError


def load_causal_lm(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model in `folder` (Hugging Face layout), in eval mode: no dropout.

    Raises SpecError if there is none, if it is not a causal language model, or if weights are missing (which
    transformers would fill with random numbers).
    """
    if not folder.is_dir():
        raise SpecError(f"policy.model: there is no folder {folder}: give one in the Hugging Face layout")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers, safetensors and json raise what they like about a bad folder
        reason = str(error).strip().partition("\n")[0].rstrip(".: ") or type(error).__name__
        raise SpecError(
            f"policy.model: {folder} is not a causal language model in the Hugging Face layout ({reason}): "
            f"give a folder that AutoModelForCausalLM.from_pretrained loads"
        ) from error
    model, report = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        if names := sorted(str(name) for name in report[problem]):
            shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise SpecError(
                f"policy.model: {folder} does not hold the weights of its config.json "
                f"({len(names)} {problem.replace('_', ' ')}: {shown}): save the model again"
            )
    return model.to(device).eval()
