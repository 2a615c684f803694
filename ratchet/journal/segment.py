"""Segments: Arrow IPC streams, one writer each, whose finished prefix can be told from a torn tail.

A segment is a schema message and then one record-batch message an append. Each of those carries the xxh3-64
of its body as custom metadata, so that a tail is dropped whether it was cut short or holds something else. A
message whose metadata has a cause too holds tombstones; any other holds groups.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import xxhash

from ratchet.artifacts.durable import storage_faults
from ratchet.journal.records import SCHEMA, from_batch, to_batch, tombstone_batch
from ratchet.rollouts.group import PromptGroup
from ratchet.spec.faults import StorageFault

SUFFIX = ".arrows"
HEADER: bytes = SCHEMA.serialize().to_pybytes()
"""The schema message that opens a segment."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_CHECKSUM = b"xxh3"
_CAUSE = b"cause"


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """Names a segment. Its order is its rank: of two records of a key, the one in the lower counts."""

    incarnation: int
    writer: str
    number: int

    @property
    def file_name(self) -> str:
        return f"{self.writer}-{self.number}{SUFFIX}"

    def path(self, folder: Path) -> Path:
        return folder / str(self.incarnation) / self.file_name


@dataclass(frozen=True, slots=True)
class Span:
    """Where a record-batch message lies in its file, in bytes, and the keys of its records."""

    start: int
    end: int
    keys: tuple[int, ...]
    cause: str | None
    """Why these draws were given up; None: they are groups."""


def list_incarnations(folder: Path) -> list[int]:
    """Incarnations that a journal has folders for, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def list_segments(folder: Path, incarnation: int) -> list[SegmentId]:
    """Segments of an incarnation, in rank order; other files are passed over."""
    segments: list[SegmentId] = []
    for path in (folder / str(incarnation)).glob(f"*{SUFFIX}"):
        writer, dash, number = path.name.removesuffix(SUFFIX).rpartition("-")
        if dash and number.isdecimal():
            segments.append(SegmentId(incarnation, writer, int(number)))
    return sorted(segments)


def encode(groups: Sequence[PromptGroup]) -> bytes:
    """The record-batch message of some groups."""
    return _message(to_batch(groups), {})


def encode_tombstones(keys: Sequence[int], incarnation: int, cause: str) -> bytes:
    """The record-batch message that gives up some draws."""
    return _message(tombstone_batch(keys, incarnation), {_CAUSE: cause.encode()})


def _message(batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> bytes:
    body = pa.ipc.read_message(batch.serialize()).body
    checksum = _checksum(body, metadata.get(_CAUSE))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(batch, custom_metadata={**metadata, _CHECKSUM: checksum})
    return sink.getvalue()[len(HEADER) : -len(_END_OF_STREAM)]


def scan(path: Path, start: int = 0, limit: int | None = None) -> Iterator[Span]:
    """Finished records of a segment from offset `start` (0, or the end of a span), up to byte `limit`.

    Ends quietly at the first byte that is not part of a finished record; a file that is gone was collected
    meanwhile, and has none. Raises StorageFault if it cannot be read, or is a whole segment of another
    layout.
    """
    with storage_faults(path, "read journal segment"):
        try:
            with path.open("rb") as file:
                file.seek(start)
                source = pa.BufferReader(file.read() if limit is None else file.read(max(0, limit - start)))
        except FileNotFoundError:
            return
    if start == 0 and not _read_header(path, source):
        return
    while (span := _next_span(source, start)) is not None:
        yield span


def read_groups(path: Path, start: int, end: int) -> list[PromptGroup]:
    """The groups of one span that holds groups. Raises StorageFault if it is not what was scanned."""
    with storage_faults(path, "read journal segment"), path.open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    decoded = _decode(data)
    if decoded is None:
        raise StorageFault(
            f"journal segment {path} was damaged after it was written (bytes {start} to {end})"
        )
    return from_batch(decoded[0])


def _read_header(path: Path, source: pa.BufferReader) -> bool:
    """Step over the schema message; False if it is not all there."""
    try:
        schema = pa.ipc.read_schema(pa.ipc.read_message(source))
    except (EOFError, OSError, pa.ArrowException):
        return False
    if not schema.equals(SCHEMA):
        raise StorageFault(
            f"journal segment {path} has another layout: it was written by another version of Ratchet, "
            "so go on with that version"
        )
    return True


def _next_span(source: pa.BufferReader, base: int) -> Span | None:
    begin = source.tell()
    try:
        pa.ipc.read_message(source)
    except (EOFError, OSError, pa.ArrowException):
        return None
    end = source.tell()
    source.seek(begin)
    decoded = _decode(source.read(end - begin))
    if decoded is None:
        return None
    batch, cause = decoded
    return Span(base + begin, base + end, tuple(batch.column("key").to_pylist()), cause)


def _decode(data: bytes) -> tuple[pa.RecordBatch, str | None] | None:
    """The record batch of one message and the cause with it, or None if the bytes are not that."""
    try:
        body = pa.ipc.read_message(data).body
        stream = pa.ipc.open_stream(HEADER + data)
        batch, metadata = stream.read_next_batch_with_custom_metadata()
    except (EOFError, OSError, StopIteration, pa.ArrowException):
        return None
    if body is None or metadata is None:
        return None
    cause = metadata.get(_CAUSE)
    if metadata.get(_CHECKSUM) != _checksum(body, cause):
        return None
    return batch, cause if cause is None else cause.decode()


def _checksum(body: pa.Buffer, cause: bytes | None) -> bytes:
    hasher = xxhash.xxh3_64(memoryview(body))
    hasher.update(cause or b"")
    return hasher.hexdigest().encode()
