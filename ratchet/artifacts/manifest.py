"""Checkpoint manifests. A checkpoint is committed once its manifest exists, and never before."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.artifacts.durable import sha256_file, storage_faults, write_atomic
from ratchet.spec.faults import CheckpointDamaged
from ratchet.spec.ids import WeightVersion
from ratchet.spec.ranges import Ranges

MANIFEST_NAME = "manifest.json"
_CHECKPOINT = re.compile(r"(?:^|/)runs/([^/]+)/checkpoints/(\d+)-(\d+)/?$")
SCHEMA_VERSION = 1


class ManifestMissing(CheckpointDamaged):
    """No manifest: nothing was ever committed there."""


class ManifestDamaged(CheckpointDamaged):
    """There is a manifest, but it is not what was written."""


class ManifestForeign(CheckpointDamaged):
    """An intact manifest that is none of ours: of another run, or of a newer Ratchet."""


class FilesDamaged(CheckpointDamaged):
    """The manifest is intact, but files that it lists are missing or are not what was written."""


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """Relative to the checkpoint folder, POSIX."""
    size: int
    """Bytes."""
    sha256: str


class Manifest(BaseModel):
    """What a checkpoint is and consists of; unique per (run, incarnation, step)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    run: str
    incarnation: int
    """The incarnation that wrote it."""
    step: int
    cursor: int
    """Next undrawn cursor position; of an asynchronous run, the lowest that it is not done with."""
    finished: Ranges = ()
    """Positions above the cursor that it is done with."""
    version: WeightVersion
    state_digest: str
    """sha256 over the sorted (name, dtype, shape, bytes) of the state: no paths, times or ids."""
    base_model: str
    """Digest of the base model the run grew from."""
    spec_digest: str
    created_at: float
    """Seconds since the epoch."""
    files: tuple[FileEntry, ...]
    """Every file of the checkpoint but the manifest itself, by path."""

    @property
    def key(self) -> str:
        """Its folder in the artifact store."""
        return checkpoint_key(self.run, self.incarnation, self.step)

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        # Manifests that were written before there was `finished` have to keep their digests.
        since = None if self.finished else {"finished"}
        return hashlib.sha256(self.model_dump_json(exclude=since).encode()).hexdigest()


def checkpoints_key(run: str) -> str:
    """Where the checkpoints of a run live in the artifact store."""
    return f"runs/{run}/checkpoints"


def checkpoint_key(run: str, incarnation: int, step: int) -> str:
    return f"{checkpoints_key(run)}/{incarnation}-{step}"


def parse_checkpoint_key(path: str) -> tuple[str, int, int] | None:
    """Run, incarnation and step of a checkpoint, from its key or its folder's path; None: it is neither."""
    found = _CHECKPOINT.search(path)
    return (found[1], int(found[2]), int(found[3])) if found else None


def commit_manifest(folder: Path, manifest: Manifest) -> str:
    """Write `folder/manifest.json` atomically: from here on the checkpoint counts.

    The digest of the manifest goes in beside it, so that one flipped bit in, say, the cursor is seen.
    Returns that digest. Raises OSError.
    """
    digest = manifest.digest
    content = {"sha256": digest, "manifest": manifest.model_dump(mode="json")}
    write_atomic(folder / MANIFEST_NAME, json.dumps(content, indent=1).encode())
    return digest


def read_manifest(folder: Path, run: str | None = None) -> Manifest:
    """The manifest of the checkpoint in `folder`, of run `run` if one is given.

    Raises ManifestMissing, ManifestDamaged or ManifestForeign; StorageFault if it cannot be read.
    """
    path = folder / MANIFEST_NAME
    with storage_faults(path, "read"):
        if folder.exists() and not folder.is_dir():
            raise ManifestDamaged(f"{folder} is a file where a checkpoint folder should be; move it away")
        if not path.exists():
            raise ManifestMissing(f"no {MANIFEST_NAME} in {folder}: no checkpoint was committed there")
        if path.is_dir():
            raise ManifestDamaged(f"{path} is a folder; use an older checkpoint")
        text = path.read_bytes()
    manifest = _parse(text, path)
    if run is not None and manifest.run != run:
        raise ManifestForeign(f"{path} belongs to run {manifest.run}, not to {run}; move it back there")
    return manifest


def _parse(text: bytes, path: Path) -> Manifest:
    fix = "use an older checkpoint"
    if not text:
        raise ManifestDamaged(f"{path} is empty; {fix}")
    try:
        content = json.loads(text)
        schema = content["manifest"]["schema_version"]
        if isinstance(schema, int) and schema > SCHEMA_VERSION:
            raise ManifestForeign(
                f"{path} has schema version {schema} and this Ratchet reads {SCHEMA_VERSION}; upgrade Ratchet"
            )
        manifest = Manifest.model_validate(content["manifest"])
        intact = content["sha256"] == manifest.digest
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ManifestDamaged(f"{path} is damaged at {where}: {first['msg'].lower()}; {fix}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestDamaged(f"{path} is damaged: it is not the JSON of a manifest; {fix}") from error
    if not intact:
        raise ManifestDamaged(f"{path} is damaged: its contents do not have its own sha256; {fix}")
    return manifest


def check_sizes(folder: Path, manifest: Manifest) -> list[str]:
    """One line per file of the checkpoint that is missing or has another size; reads none. Good: [].

    Raises StorageFault if it cannot be looked at."""
    return _problems(folder, manifest, _size_problem)


def verify_files(folder: Path, manifest: Manifest) -> list[str]:
    """One line per missing or damaged file of the checkpoint; reads every byte. Intact: [].

    Raises StorageFault if one cannot be read: that may pass, and says nothing of what is in it."""
    return _problems(folder, manifest, _any_problem)


def files_damaged(problems: Sequence[str]) -> FilesDamaged:
    """The error for what `check_sizes` or `verify_files` found."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return FilesDamaged(f"checkpoint is damaged: {problems[0]}{more}; use an older one")


def _problems(folder: Path, manifest: Manifest, look: Callable[[Path, FileEntry], str | None]) -> list[str]:
    problems: list[str] = []
    for file in manifest.files:
        path = folder / file.path
        with storage_faults(path, "read"):  # what cannot be read now is not damaged for that
            problem = look(path, file)
        if problem:
            problems.append(problem)
    return problems


def _size_problem(path: Path, file: FileEntry) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    return None if size == file.size else f"{path} has {size} bytes and should have {file.size}"


def _any_problem(path: Path, file: FileEntry) -> str | None:
    problem = _size_problem(path, file)
    if problem is None and sha256_file(path) != file.sha256:
        problem = f"{path} is damaged: its sha256 is not the manifest's"
    return problem
