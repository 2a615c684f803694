"""Write a checkpoint: files first, digests next, the manifest last."""

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from ratchet.artifacts.durable import fsync, remove, sha256_file, storage_fault, storage_faults
from ratchet.artifacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    ManifestDamaged,
    ManifestForeign,
    ManifestMissing,
    commit_manifest,
    read_manifest,
    verify_files,
)
from ratchet.checkpoints.state import flatten, state_digest
from ratchet.sessions.failpoints import failpoint
from ratchet.spec.faults import Conflict, RatchetError, StorageFault
from ratchet.spec.ids import WeightVersion
from ratchet.spec.ranges import Ranges

STATE_FOLDER = "state"
HF_FOLDER = "hf"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """What a commit left behind. Bytes and files count everything but the manifest."""

    digest: str
    manifest_digest: str
    num_bytes: int
    num_files: int
    write_s: float


def write_checkpoint(
    folder: Path,
    state: Mapping[str, object],
    *,
    run: str,
    incarnation: int,
    step: int,
    cursor: int,
    finished: Ranges = (),
    version: WeightVersion,
    base_model: str,
    spec_digest: str,
    hf_export: Callable[[Path], None] | None = None,
) -> WrittenCheckpoint:
    """Commit `state` (see `PolicyTrainer.state`) into `folder`, which belongs to (run, incarnation, step).

    `folder/state` is written by torch.distributed.checkpoint, `folder/hf` by `hf_export`, and
    `folder/manifest.json` last and atomically: a crash before that leaves nothing that counts. What an
    earlier crash left is removed first. Committed already with the same state, it is left as it is;
    with another state, or by somebody else: Conflict. Raises StorageFault (a full disk), and then
    leaves nothing half-written.
    """
    started = time.monotonic()
    digest = state_digest(state)
    committed = _committed(folder, run, digest)
    if committed is None:
        try:
            with storage_faults(folder, "write checkpoint"):
                _clear(folder)
                files = _write_files(folder, state, hf_export)
                committed = Manifest(
                    run=run,
                    incarnation=incarnation,
                    step=step,
                    cursor=cursor,
                    finished=finished,
                    version=version,
                    state_digest=digest,
                    base_model=base_model,
                    spec_digest=spec_digest,
                    created_at=time.time(),
                    files=files,
                )
                failpoint("commit_checkpoint.written")
                commit_manifest(folder, committed)
                failpoint("commit_checkpoint.committed")
        except BaseException:
            with storage_faults(folder, "remove half-written checkpoint"):
                _clear(folder)
            raise
    return WrittenCheckpoint(
        digest=digest,
        manifest_digest=committed.digest,
        num_bytes=committed.num_bytes,
        num_files=len(committed.files),
        write_s=time.monotonic() - started,
    )


def _committed(folder: Path, run: str, digest: str) -> Manifest | None:
    """The manifest of an intact checkpoint of this very state, if there is one in `folder`."""
    try:
        manifest = read_manifest(folder, run)
    except ManifestMissing:
        return None
    except ManifestForeign as fault:
        raise Conflict(f"will not overwrite a checkpoint: {fault}") from fault
    except ManifestDamaged as fault:
        if not folder.is_dir():
            raise  # somebody's file: not ours to remove
        _log.warning("writing a damaged checkpoint anew: %s", fault)
        return None
    if manifest.state_digest != digest:
        raise Conflict(
            f"{folder} holds another state (sha256 {manifest.state_digest[:12]}…) than the one to write "
            f"({digest[:12]}…); one (incarnation, step) has one checkpoint"
        )
    damage = verify_files(folder, manifest)
    for problem in damage:
        _log.warning("writing a damaged checkpoint anew: %s", problem)
    return None if damage else manifest


def _clear(folder: Path) -> None:
    if folder.is_dir():
        remove(folder / MANIFEST_NAME)  # first: what is half removed must not look committed
        remove(folder)


def _write_files(
    folder: Path, state: Mapping[str, object], hf_export: Callable[[Path], None] | None
) -> tuple[FileEntry, ...]:
    (folder / STATE_FOLDER).mkdir(parents=True)
    _save_state(state, folder / STATE_FOLDER)
    failpoint("commit_checkpoint.writing")
    if hf_export is not None:
        (folder / HF_FOLDER).mkdir()
        hf_export(folder / HF_FOLDER)
    entries: list[FileEntry] = []
    for path in sorted(folder.rglob("*")):
        fsync(path)
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            entries.append(FileEntry(path=name, size=path.stat().st_size, sha256=sha256_file(path)))
    fsync(folder)
    fsync(folder.parent)
    return tuple(entries)


def _save_state(state: Mapping[str, object], target: Path) -> None:
    # DCP walks into dicts and lists that are values; in a tuple they stay the one value they are.
    entries = {
        name: value if isinstance(value, torch.Tensor) else (value,) for name, value in flatten(state).items()
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(entries, storage_writer=dcp.FileSystemWriter(target), no_dist=True)
    except CheckpointException as error:  # a BaseException, around what really happened
        raise _cause(error, target) from error


def _cause(error: CheckpointException, target: Path) -> RatchetError:
    """torch reports a full disk as `unexpected pos 704 vs 598`: the OSError is found behind it."""
    failure, _ = next(iter(error.failures.values()))
    behind: BaseException | None = failure
    while behind is not None:
        if isinstance(behind, OSError):
            return storage_fault(behind, target, "write")
        behind = behind.__cause__ or behind.__context__
    return StorageFault(f"cannot write {target}: {type(failure).__name__}: {failure}")
