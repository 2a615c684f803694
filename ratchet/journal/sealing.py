"""Sealing: once a higher incarnation is open, what an older one still writes does not count (law 13)."""

from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.artifacts.durable import create_once, make_folder, storage_faults, write_atomic
from ratchet.journal.segment import list_segments, scan
from ratchet.spec.faults import StorageFault

_FILE = "sealed.json"


class Seal(BaseModel):
    """What counts of an incarnation: segments it does not name, and bytes past the lengths, never existed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    segments: dict[str, int]
    """Segment file name -> length of its finished records, in bytes."""


def seal(folder: Path, incarnation: int) -> None:
    """Seal every incarnation below `incarnation`, also one that has written nothing yet (they count from 1).

    Atomic, and the first seal of an incarnation stays. Raises StorageFault.
    """
    for older in range(1, incarnation):
        if is_sealed(folder, older):
            continue
        lengths = {
            segment.file_name: max((span.end for span in scan(segment.path(folder))), default=0)
            for segment in list_segments(folder, older)
        }
        path = _seal_path(folder, older)
        with storage_faults(path, "seal a journal with"):
            make_folder(path.parent)
            create_once(path, Seal(segments=lengths).model_dump_json().encode())


def is_sealed(folder: Path, incarnation: int) -> bool:
    return _seal_path(folder, incarnation).exists()


def read_seal(folder: Path, incarnation: int) -> Seal | None:
    """The seal of an incarnation; None while it is open. Raises StorageFault on a damaged one."""
    path = _seal_path(folder, incarnation)
    try:
        with storage_faults(path, "read"):
            return Seal.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError:
        raise StorageFault(
            f"{path} is damaged, so it is unknown what counts of incarnation {incarnation}: "
            "restore that file from a backup"
        ) from None


def forget(folder: Path, incarnation: int, segments: Collection[str]) -> None:
    """Leave segments (file names) out of the seal of an incarnation, for good; without a seal, no effect.

    Atomic. Raises StorageFault.
    """
    sealed = read_seal(folder, incarnation)
    if sealed is None or sealed.segments.keys().isdisjoint(segments):
        return
    rest = {name: length for name, length in sealed.segments.items() if name not in segments}
    path = _seal_path(folder, incarnation)
    with storage_faults(path, "write"):
        write_atomic(path, Seal(segments=rest).model_dump_json().encode())


def _seal_path(folder: Path, incarnation: int) -> Path:
    return folder / str(incarnation) / _FILE
