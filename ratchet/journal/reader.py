"""The reading side of the journal: which groups are finished, and where."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ratchet.journal.records import Tombstone
from ratchet.journal.sealing import Seal, read_seal
from ratchet.journal.segment import SegmentId, list_incarnations, list_segments, read_groups, scan
from ratchet.rollouts.group import PromptGroup

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class _Location:
    """Ordered by rank: the lowest location of a key holds the record that counts."""

    segment: SegmentId
    start: int
    end: int
    cause: str | None
    """Of a tombstone; None: it is a group."""


class JournalIndex:
    """Keys of a journal and where their records lie, over every writer's segments.

    The first record of a key counts, in the order (incarnation, writer, n), be it a group or a tombstone.
    Torn tails and whatever a seal leaves out are passed over.
    """

    def __init__(self, folder: Path) -> None:
        """Index what is there. Raises StorageFault."""
        self._folder = folder
        self._locations: dict[int, _Location] = {}
        self._dropped: set[int] = set()
        """Keys whose location is a tombstone's: few, and asked for at every rollout."""
        self._read_to: dict[SegmentId, int] = {}
        self._seals: dict[int, Seal] = {}
        self.refresh()

    def keys(self) -> list[int]:
        """Keys of all finished groups, sorted."""
        return sorted(key for key, location in self._locations.items() if location.cause is None)

    def tombstones(self) -> dict[int, Tombstone]:
        """Draws that were given up, by key, in order."""
        found: dict[int, Tombstone] = {}
        for key in sorted(self._dropped):
            location = self._locations[key]
            found[key] = Tombstone(key, location.segment.incarnation, location.cause or "")
        return found

    def groups(self, keys: Iterable[int]) -> dict[int, PromptGroup]:
        """Those of `keys` that have a finished group, read from disk. Raises StorageFault."""
        wanted: defaultdict[_Location, list[int]] = defaultdict(list)
        for key in keys:
            location = self._locations.get(key)
            if location is not None and location.cause is None:
                wanted[location].append(key)
        found: dict[int, PromptGroup] = {}
        for location, here in wanted.items():
            groups = read_groups(location.segment.path(self._folder), location.start, location.end)
            # Reversed, so that the first record counts within a batch too.
            by_key = {group.key: group for group in reversed(groups)}
            found |= {key: by_key[key] for key in here}
        return found

    def refresh(self) -> None:
        """Take in what was written since. Reads only new bytes, except after an incarnation was sealed or
        segments were collected."""
        incarnations = list_incarnations(self._folder)
        segments = [segment for n in incarnations for segment in list_segments(self._folder, n)]
        seals = {n: found for n in incarnations if (found := read_seal(self._folder, n)) is not None}
        if seals != self._seals:
            for incarnation, sealed in seals.items():
                self._report_missing(incarnation, sealed)
        if seals != self._seals or not self._read_to.keys() <= set(segments):
            self._seals = seals
            self._locations.clear()
            self._dropped.clear()
            self._read_to.clear()
        for segment in segments:
            self._read(segment, seals.get(segment.incarnation))

    def _report_missing(self, incarnation: int, sealed: Seal) -> None:
        for name, length in sealed.segments.items():
            path = self._folder / str(incarnation) / name
            if length and not path.exists():
                log.warning(
                    "journal segment %s was sealed at %d bytes, but is gone: its groups are generated again",
                    path,
                    length,
                )

    def _read(self, segment: SegmentId, sealed: Seal | None) -> None:
        limit = None if sealed is None else sealed.segments.get(segment.file_name, 0)
        first_time = segment not in self._read_to
        end = self._read_to.get(segment, 0)
        for span in scan(segment.path(self._folder), end, limit):
            location = _Location(segment, span.start, span.end, span.cause)
            for key in span.keys:
                winner = self._locations[key] = min(location, self._locations.get(key, location))
                if winner.cause is None:
                    self._dropped.discard(key)
                else:
                    self._dropped.add(key)
            end = span.end
        self._read_to[segment] = end
        if first_time and limit is not None and end < limit:
            log.warning(
                "journal segment %s was sealed at %d bytes, but is whole only up to byte %d: "
                "groups after it are generated again",
                segment.path(self._folder),
                limit,
                end,
            )
