"""Draws that are given up leave a record of their own, under the same rules as groups."""

from pathlib import Path

import pytest

from ratchet.journal.reader import JournalIndex
from ratchet.journal.records import Tombstone
from ratchet.journal.writer import JournalWriter
from ratchet.spec.faults import Conflict

CAUSE = "DataFault: the prompt of problem 5 has 900 tokens, where 1 to 500 fit"


@pytest.fixture
def writer(open_writer) -> JournalWriter:
    return open_writer(1)


def test_a_tombstone_is_no_group_and_says_why(writer: JournalWriter, folder: Path, make_group) -> None:
    index = JournalIndex(folder)
    writer.append([make_group(4)])
    writer.drop([7, 5], CAUSE)
    writer.append([make_group(6)])
    index.refresh()
    for reader in (index, JournalIndex(folder)):
        assert reader.keys() == [4, 6]
        assert set(reader.groups([4, 5, 6, 7])) == {4, 6}
        assert reader.tombstones() == {5: Tombstone(5, 1, CAUSE), 7: Tombstone(7, 1, CAUSE)}


def test_the_first_record_of_a_key_counts_also_between_tombstone_and_group(
    writer: JournalWriter, folder: Path, make_group
) -> None:
    writer.drop([1], "dropped first")
    writer.append([make_group(1), make_group(2)])
    writer.drop([2], "dropped too late")
    writer.adopt(2)
    writer.append([make_group(1, incarnation=2)])
    writer.drop([2, 3], "dropped in another life")
    index = JournalIndex(folder)
    assert index.keys() == [2]
    assert set(index.groups([1, 2, 3])) == {2}
    assert index.tombstones() == {
        1: Tombstone(1, 1, "dropped first"),
        3: Tombstone(3, 2, "dropped in another life"),
    }


def test_a_late_tombstone_of_a_sealed_incarnation_does_not_count(
    open_writer, writer: JournalWriter, folder: Path, make_group
) -> None:
    path = folder / "1" / "generator-0-0.arrows"
    before = path.read_bytes()
    writer.drop([5], CAUSE)
    late = path.read_bytes()
    path.write_bytes(before)
    successor = open_writer(2, "generator-1")
    successor.append([make_group(5, incarnation=2)])
    path.write_bytes(late)
    assert JournalIndex(folder).keys() == [5]
    assert JournalIndex(folder).tombstones() == {}
    with pytest.raises(Conflict, match="sealed"):
        writer.drop([6], CAUSE)


def test_a_torn_or_flipped_tombstone_is_dropped(writer: JournalWriter, folder: Path) -> None:
    path = folder / "1" / "generator-0-0.arrows"
    begin = path.stat().st_size
    writer.drop([5], CAUSE)
    whole = path.read_bytes()
    assert JournalIndex(folder).tombstones() == {5: Tombstone(5, 1, CAUSE)}
    for length in range(begin, len(whole) - 8, 11):
        path.write_bytes(whole[:length])
        assert JournalIndex(folder).tombstones() == {}, length
    said = whole.index(CAUSE.encode())
    for position in range(said, said + len(CAUSE)):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert JournalIndex(folder).tombstones() == {}, position


def test_dropping_without_an_incarnation_is_refused(folder: Path) -> None:
    with pytest.raises(Conflict, match="no incarnation"):
        JournalWriter(folder, "generator-0").drop([1], CAUSE)
