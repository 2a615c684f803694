"""The reading side of the journal: which groups are finished, and where."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


class JournalIndex:
    """Keys of a journal and where their groups lie, over every writer's segments.

    The first record of a key counts, in the order (incarnation, writer, n). Torn tails and whatever a seal
    leaves out are passed over.
    """

    def __init__(self, folder: Path) -> None:
        """Index what is there. Raises StorageFault."""
        self._folder = folder
        self._locations: dict[int, _Location] = {}
        self._read_to: dict[SegmentId, int] = {}
        self._seals: dict[int, Seal] = {}
        self.refresh()

    def keys(self) -> list[int]:
        """Keys of all finished groups, sorted."""
        return sorted(self._locations)

    def groups(self, keys: Iterable[int]) -> dict[int, PromptGroup]:
        """Those of `keys` that the journal holds, read from disk. Raises StorageFault."""
        wanted: defaultdict[_Location, list[int]] = defaultdict(list)
        for key in keys:
            if key in self._locations:
                wanted[self._locations[key]].append(key)
        found: dict[int, PromptGroup] = {}
        for location, here in wanted.items():
            groups = read_groups(location.segment.path(self._folder), location.start, location.end)
            # Reversed, so that the first record counts within a batch too.
            by_key = {group.key: group for group in reversed(groups)}
            found |= {key: by_key[key] for key in here}
        return found

    def refresh(self) -> None:
        """Take in what was written since. Reads only new bytes, except after an incarnation was sealed."""
        incarnations = list_incarnations(self._folder)
        seals = {n: found for n in incarnations if (found := read_seal(self._folder, n)) is not None}
        if seals != self._seals:
            self._seals = seals
            self._locations.clear()
            self._read_to.clear()
        for incarnation in incarnations:
            for segment in list_segments(self._folder, incarnation):
                self._read(segment, seals.get(incarnation))

    def _read(self, segment: SegmentId, sealed: Seal | None) -> None:
        limit = None if sealed is None else sealed.segments.get(segment.file_name, 0)
        end = self._read_to.get(segment, 0)
        for span in scan(segment.path(self._folder), end, limit):
            location = _Location(segment, span.start, span.end)
            for key in span.keys:
                self._locations[key] = min(location, self._locations.get(key, location))
            end = span.end
        self._read_to[segment] = end
        if limit is not None and end < limit:
            log.warning(
                "journal segment %s was sealed at %d bytes, but is whole only up to byte %d: "
                "groups after it are generated again",
                segment.path(self._folder),
                limit,
                end,
            )
