"""From a model name to a folder that `from_pretrained` loads, made once and kept under RATCHET_HOME."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from ratchet.models.names import SMOLLM2, TINY, check_model_name, is_folder
from ratchet.spec.deadlines import MODEL_PREPARE
from ratchet.spec.faults import InfraFault, StorageFault
from ratchet.spec.home import Home


def prepare_model(name: str, home: Home) -> Path:
    """Folder of a base model: config, safetensors, tokenizer, in the Hugging Face layout.

    `tiny` and `smollm2-135m` are built (half a minute), a Hugging Face name is downloaded, a folder is
    taken as it is. Safe to call from several processes at once: one builds, the others wait. Raises SpecError
    if there is no such model, InfraFault if another process builds for too long, StorageFault if
    RATCHET_HOME cannot be written.
    """
    check_model_name(name)
    if is_folder(name):
        return Path(name).expanduser().resolve()
    recipe, build = _source(name)
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    folder = home.models / f"{name.replace('/', '--')}-{digest}"
    if _complete(folder):
        return folder
    try:
        home.models.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock", timeout=MODEL_PREPARE):
            if not _complete(folder):
                _build_into(folder, build)
    except Timeout:
        raise InfraFault(
            f"another process has been preparing {name} for {MODEL_PREPARE:.0f} s ({folder}.lock)"
        ) from None
    except OSError as error:
        raise StorageFault(f"cannot write {name} to {home.models}: {error.strerror or error}") from error
    return folder


def _source(name: str) -> tuple[dict[str, object], Callable[[Path], None]]:
    """What decides a model's bytes, and how to write them into an empty folder."""
    if name == TINY:
        from ratchet.models import tiny

        return tiny.recipe(), tiny.build_tiny
    if name == SMOLLM2:
        from ratchet.models import smollm2

        return smollm2.recipe(), smollm2.build_smollm2
    from ratchet.models import hub

    return hub.recipe(name), lambda folder: hub.build_from_hub(name, folder)


def _complete(folder: Path) -> bool:
    """A folder appears whole or not at all, but a link in it may lose its file (a cleared hub cache)."""
    return folder.is_dir() and all(file.exists() for file in folder.iterdir())


def _build_into(folder: Path, build: Callable[[Path], None]) -> None:
    """Build beside the folder and rename. The lock is held, so what lies there is a killed builder's."""
    partial = folder.with_name(f".{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
