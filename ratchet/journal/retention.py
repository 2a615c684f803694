"""Collecting journal segments that no restore can ever need."""

from pathlib import Path

from ratchet.artifacts.durable import fsync, storage_faults
from ratchet.journal.sealing import forget, read_seal
from ratchet.journal.segment import SegmentId, list_incarnations, list_segments, scan


def collect(folder: Path, below_cursor: int) -> int:
    """Delete segments whose every record is of a draw before `below_cursor`; bytes that were freed.

    With the cursor of the oldest checkpoint kept, a restore misses nothing; whoever browses records or
    audits the run does, so this is for those who asked for it. Only segments that nobody writes any more:
    of a sealed incarnation, or followed by a later one of the same writer. One that holds the record that
    counts of a key stays as long as a later record of that key, which would count in its place.

    Reads the whole journal. Killed anywhere, it leaves a journal that reads as before, or without a
    collected segment. Raises StorageFault.
    """
    segments = [segment for n in list_incarnations(folder) for segment in list_segments(folder, n)]
    last = {(segment.incarnation, segment.writer): segment for segment in segments}
    seals = {n: read_seal(folder, n) for n in {segment.incarnation for segment in segments}}
    collected: list[SegmentId] = []
    staying: set[int] = set()
    for segment in reversed(segments):
        sealed = seals[segment.incarnation]
        limit = None if sealed is None else sealed.segments.get(segment.file_name, 0)
        keys = {key for span in scan(segment.path(folder), 0, limit) for key in span.keys}
        closed = sealed is not None or segment != last[segment.incarnation, segment.writer]
        if closed and staying.isdisjoint(keys) and all(key < below_cursor for key in keys):
            collected.append(segment)
        else:
            staying |= keys
    return sum(_remove(folder, segment) for segment in collected)


def _remove(folder: Path, segment: SegmentId) -> int:
    path = segment.path(folder)
    # From here on it never existed; what the seal still names must be there.
    forget(folder, segment.incarnation, [segment.file_name])
    with storage_faults(path, "delete journal segment"):
        size = path.stat().st_size
        path.unlink()
        fsync(path.parent)
    return size
