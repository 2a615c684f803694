"""Load a checkpoint: verified first, then read into a template."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ratchet.artifacts.durable import storage_fault, storage_faults
from ratchet.artifacts.manifest import files_damaged, read_manifest, verify_files
from ratchet.checkpoints.state import flatten, unflatten
from ratchet.checkpoints.writer import STATE_FOLDER
from ratchet.spec.faults import SpecError, StorageFault


def load_checkpoint(
    folder: Path, template: Mapping[str, object], run: str | None = None
) -> dict[str, object]:
    """The state in `folder`, in the structure of `template` (see `PolicyTrainer.state_template`).

    Every byte is verified before any is used. Tensors are read into those of the template (one on the
    `meta` device gets memory on the CPU); plain values are replaced. Raises CheckpointDamaged naming what is
    missing or damaged, StorageFault if it cannot be read just now, SpecError if the checkpoint is of a model
    with other tensors.
    """
    manifest = read_manifest(folder, run)
    if damage := verify_files(folder, manifest):
        raise files_damaged(damage)

    reader = dcp.FileSystemReader(folder / STATE_FOLDER)
    wanted = flatten(template)
    with storage_faults(folder / STATE_FOLDER, "read"):
        _check_fit(folder, wanted, reader)
    entries = {name: _room(value) for name, value in wanted.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(entries, storage_reader=reader, no_dist=True)
    except CheckpointException as error:  # a BaseException, around what really happened
        failure, _ = next(iter(error.failures.values()))
        # Every byte was right a moment ago, so this is not damage; if it became that, the next try tells.
        if isinstance(failure, OSError):
            raise storage_fault(failure, folder / STATE_FOLDER, "read") from error
        raise StorageFault(f"cannot read {folder / STATE_FOLDER}: {failure}") from error
    flat = {
        name: value[0] if isinstance(value, tuple) else value  # plain values are stored in a tuple
        for name, value in entries.items()
    }
    return unflatten(template, flat)


def _room(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="cpu") if value.is_meta else value
    return (value,)


def _check_fit(folder: Path, wanted: Mapping[str, object], reader: dcp.FileSystemReader) -> None:
    """DCP would cast another dtype and leave out what was not asked for, both in silence."""
    want = {name: _kind(value) for name, value in wanted.items()}
    held: dict[str, str] = {}
    for name, item in reader.read_metadata().state_dict_metadata.items():
        tensor = isinstance(item, TensorStorageMetadata)
        held[name] = _describe(item.properties.dtype, item.size) if tensor else "a plain value"
    differing = sorted(name for name in want.keys() | held.keys() if want.get(name) != held.get(name))
    if differing:
        name = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise SpecError(
            f"checkpoint {folder} does not fit policy.model: {name} is {held.get(name, 'absent')} in the "
            f"checkpoint and {want.get(name, 'absent')} in the run{more}; use the model it was made with"
        )


def _kind(value: object) -> str:
    return _describe(value.dtype, value.shape) if isinstance(value, torch.Tensor) else "a plain value"


def _describe(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
