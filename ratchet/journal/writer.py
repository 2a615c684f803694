"""The writing side of the journal: a group is finished once `append` has returned."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ratchet.artifacts.durable import fsync, make_folder, storage_faults
from ratchet.journal.sealing import is_sealed, seal
from ratchet.journal.segment import HEADER, SegmentId, encode, encode_tombstones, list_segments
from ratchet.rollouts.group import PromptGroup
from ratchet.spec.faults import Conflict

SEGMENT_BYTES = 64 * 2**20
"""A segment that has grown to this is closed and another one begun: what is old can then be collected."""


class JournalWriter:
    """Appends to a segment of its own, `<folder>/<incarnation>/<writer>-<n>.arrows`, with the next n."""

    def __init__(self, folder: Path, writer: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Touches nothing on disk: the first `adopt` opens a segment."""
        self._folder = folder
        self._writer = writer
        self._segment_bytes = segment_bytes
        self._incarnation = 0
        self._file: BinaryIO | None = None

    def adopt(self, incarnation: int) -> None:
        """Open a segment of a higher incarnation, and seal all lower ones; again: no effect.

        Incarnations count from 1. Raises StorageFault, or Conflict if a higher one was adopted before, here
        or by another writer.
        """
        if incarnation < max(1, self._incarnation):
            raise Conflict(
                f"incarnation {incarnation} of {self._folder} is over: writer {self._writer} is in "
                f"{self._incarnation}"
            )
        if incarnation == self._incarnation:
            return
        self.close()
        self._incarnation = incarnation
        seal(self._folder, incarnation)
        self._file = self._open_next()

    def append(self, groups: Sequence[PromptGroup]) -> None:
        """Write finished groups; they are durable on return. All of them or, after an error, none.

        Raises StorageFault, or Conflict once a higher incarnation has sealed this one.
        """
        if groups:
            self._append(encode(groups))

    def drop(self, keys: Sequence[int], cause: str) -> None:
        """Leave tombstones for draws that are given up: dropped, replaced or evicted. They are durable on
        return, and count like records: a key with a finished group keeps it.

        Raises as `append` does.
        """
        if keys:
            self._append(encode_tombstones(keys, self._incarnation, cause))

    def close(self) -> None:
        """Close the segment; what was appended stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, message: bytes) -> None:
        if not self._incarnation:
            raise Conflict(f"writer {self._writer} of {self._folder} has adopted no incarnation yet")
        self._refuse_if_sealed()
        file = self._file or self._open_next()
        # An append that fails may leave a torn tail, so nothing may follow it in that file.
        self._file = None
        try:
            _write(file, message)
        except BaseException:
            file.close()
            raise
        self._file = file
        if file.tell() >= self._segment_bytes:
            self.close()

    def _open_next(self) -> BinaryIO:
        self._refuse_if_sealed()
        # Above every one there is, not in a gap: numbers are ranks, and collected segments leave gaps.
        mine = [s for s in list_segments(self._folder, self._incarnation) if s.writer == self._writer]
        number = max((segment.number + 1 for segment in mine), default=0)
        while True:
            path = SegmentId(self._incarnation, self._writer, number).path(self._folder)
            with storage_faults(path, "open journal segment"):
                make_folder(path.parent)
                try:
                    file = path.open("xb", buffering=0)
                except FileExistsError:
                    number += 1
                    continue
            try:
                _write(file, HEADER)
                with storage_faults(path, "open journal segment"):
                    fsync(path.parent)
            except BaseException:
                file.close()
                raise
            return file

    def _refuse_if_sealed(self) -> None:
        if is_sealed(self._folder, self._incarnation):
            raise Conflict(
                f"incarnation {self._incarnation} of {self._folder} is sealed: a higher one has taken over"
            )


def _write(file: BinaryIO, data: bytes) -> None:
    with storage_faults(Path(file.name), "write journal segment"):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file.fileno(), rest) :]
        os.fsync(file.fileno())
