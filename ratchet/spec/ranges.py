"""Sets of cursor positions, as what they mostly are: a few ranges."""

from collections.abc import Iterable, Iterator

Ranges = tuple[tuple[int, int], ...]
"""Half-open, in order, none touching another."""


def to_ranges(keys: Iterable[int]) -> Ranges:
    found: list[tuple[int, int]] = []
    for key in sorted(set(keys)):
        if found and found[-1][1] == key:
            found[-1] = (found[-1][0], key + 1)
        else:
            found.append((key, key + 1))
    return tuple(found)


def keys_of(ranges: Ranges) -> Iterator[int]:
    for start, end in ranges:
        yield from range(start, end)


def count(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)


def finished(cursor: int, ahead: Ranges, more: Iterable[int]) -> tuple[int, Ranges]:
    """A cursor below which all is finished, and what is finished above it; again, with `more` finished."""
    done = to_ranges([*keys_of(ahead), *(key for key in more if key >= cursor)])
    if done and done[0][0] == cursor:
        return done[0][1], done[1:]
    return cursor, done
