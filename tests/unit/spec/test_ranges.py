import itertools

from hypothesis import given
from hypothesis import strategies as st

from ratchet.spec.ranges import count, finished, keys_of, to_ranges

KEYS = st.sets(st.integers(0, 40))


@given(KEYS)
def test_ranges_hold_what_was_put_into_them_and_do_not_touch(keys: set[int]) -> None:
    ranges = to_ranges(keys)
    assert list(keys_of(ranges)) == sorted(keys)
    assert count(ranges) == len(keys)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))


@given(st.lists(KEYS, max_size=6))
def test_a_cursor_is_the_lowest_that_is_not_finished(parts: list[set[int]]) -> None:
    cursor, ahead = 0, ()
    done: set[int] = set()
    for part in parts:
        cursor, ahead = finished(cursor, ahead, part)
        done |= part
        assert cursor == next(key for key in range(100) if key not in done)
        assert set(keys_of(ahead)) == {key for key in done if key > cursor}
