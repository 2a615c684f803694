"""What the journal promises: appended is finished, torn is dropped, the first record of a key counts."""

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.spec.faults import Conflict, StorageFault


def segments(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.arrows"))


def test_appended_groups_are_found_by_anybody(open_writer, folder: Path, make_group, plain) -> None:
    writer = open_writer()
    index = JournalIndex(folder)
    groups = {key: make_group(key) for key in (3, 1, 2)}
    writer.append([groups[3]])
    writer.append([groups[1], groups[2]])
    assert index.keys() == []
    index.refresh()
    for reader in (index, JournalIndex(folder)):
        assert reader.keys() == [1, 2, 3]
        found = reader.groups([2, 3, 99])
        assert {key: plain(group) for key, group in found.items()} == {
            key: plain(groups[key]) for key in (2, 3)
        }


def test_a_journal_that_does_not_exist_is_empty(folder: Path) -> None:
    index = JournalIndex(folder)
    assert (index.keys(), index.groups([1])) == ([], {})
    assert not folder.exists()


def test_refresh_reads_only_what_is_new(open_writer, folder: Path, make_group) -> None:
    writer = open_writer()
    writer.append([make_group(1)])
    index = JournalIndex(folder)
    path = folder / "1" / "generator-0-0.arrows"
    whole = path.read_bytes()
    writer.append([make_group(2)])
    # Had refresh looked at the old bytes again, it would have stopped at them.
    path.write_bytes(bytes(len(whole)) + path.read_bytes()[len(whole) :])
    index.refresh()
    assert index.keys() == [1, 2]


def test_a_segment_cut_at_any_byte_gives_its_finished_prefix(
    open_writer, folder: Path, make_group, plain
) -> None:
    writer = open_writer()
    path = folder / "1" / "generator-0-0.arrows"
    groups = [make_group(key, samples=1, text="") for key in range(2)]
    ends = []
    for group in groups:
        writer.append([group])
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    cut_folder = folder.with_name("cut")
    cut = cut_folder / "1" / path.name
    cut.parent.mkdir(parents=True)
    cut.write_bytes(whole)
    for length in range(len(whole), -1, -1):
        os.truncate(cut, length)
        index = JournalIndex(cut_folder)
        finished = sum(end <= length for end in ends)
        assert index.keys() == list(range(finished)), length
        if length % 50 == 0 or length in ends:
            found = index.groups([0, 1])
            assert [plain(found[key]) for key in sorted(found)] == [
                plain(group) for group in groups[:finished]
            ]
            # A reader that met the torn tail takes in the rest once it is there.
            cut.write_bytes(whole)
            index.refresh()
            assert index.keys() == [0, 1], length


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\x5a"])
def test_a_tail_filled_with_something_else_is_dropped(
    open_writer, folder: Path, make_group, filler: bytes
) -> None:
    writer = open_writer()
    path = folder / "1" / "generator-0-0.arrows"
    writer.append([make_group(0)])
    begin = path.stat().st_size
    writer.append([make_group(1)])
    whole = path.read_bytes()
    assert JournalIndex(folder).keys() == [0, 1]
    for start in range(begin, len(whole), 7):
        filled = whole[:start] + filler * (len(whole) - start)
        if filled == whole:
            continue
        path.write_bytes(filled)
        keys = JournalIndex(folder).keys()
        # The last bytes are padding, which says nothing about the groups.
        assert keys == [0] or (keys == [0, 1] and start > len(whole) - 64), start


def test_a_new_writer_opens_a_segment_of_its_own(open_writer, folder: Path, make_group) -> None:
    open_writer().append([make_group(1)])
    before = (folder / "1" / "generator-0-0.arrows").read_bytes()
    open_writer().append([make_group(2)])
    assert (folder / "1" / "generator-0-0.arrows").read_bytes() == before
    assert segments(folder) == ["1/generator-0-0.arrows", "1/generator-0-1.arrows"]
    assert JournalIndex(folder).keys() == [1, 2]


def test_two_writers_share_a_journal(open_writer, folder: Path, make_group) -> None:
    one, two = open_writer(name="generator-0"), open_writer(name="generator-1")
    one.append([make_group(1)])
    two.append([make_group(2)])
    one.append([make_group(3)])
    assert JournalIndex(folder).keys() == [1, 2, 3]


def text_of(index: JournalIndex, key: int) -> str:
    return index.groups([key])[key].samples[0].text


def test_the_first_record_of_a_key_counts(open_writer, folder: Path, make_group) -> None:
    index = JournalIndex(folder)
    order = [(2, "a", "2 a"), (1, "b", "1 b, first"), (1, "a", "1 a")]
    writers = [(open_writer(1, name), text) for number, name, text in order if number == 1]
    for writer, text in writers:
        writer.append([make_group(5, text=text)])
        index.refresh()
        # Whatever order records are met in, all readers agree.
        assert text_of(index, 5) == text_of(JournalIndex(folder), 5)
    writers[0][0].append(
        [make_group(5, text="1 b, again"), make_group(6, text="one"), make_group(6, text="two")]
    )
    open_writer(2, "a").append([make_group(5, incarnation=2, text="2 a")])
    for reader in (index, JournalIndex(folder)):
        reader.refresh()
        assert text_of(reader, 5) == "1 a"
        assert text_of(reader, 6) == "one"


def test_adopting_a_higher_incarnation_opens_a_new_segment(open_writer, folder: Path, make_group) -> None:
    writer = open_writer()
    writer.append([make_group(1)])
    writer.adopt(1)
    writer.adopt(3)
    writer.append([make_group(2, incarnation=3)])
    assert segments(folder) == ["1/generator-0-0.arrows", "3/generator-0-0.arrows"]
    with pytest.raises(Conflict, match=r"incarnation 2 of .* is over"):
        writer.adopt(2)
    writer.append([make_group(3, incarnation=3)])
    assert JournalIndex(folder).keys() == [1, 2, 3]


def test_a_writer_without_an_incarnation_refuses(folder: Path, make_group) -> None:
    writer = JournalWriter(folder, "generator-0")
    with pytest.raises(Conflict, match="no incarnation"):
        writer.append([make_group(1)])
    with pytest.raises(Conflict, match="incarnation 0"):
        writer.adopt(0)


def test_late_bytes_of_a_sealed_incarnation_do_not_count(open_writer, folder: Path, make_group) -> None:
    zombie = open_writer(1)
    zombie.append([make_group(1)])
    late = folder / "1" / "generator-0-0.arrows"
    before = len(late.read_bytes())
    zombie.append([make_group(5, text="late")])
    tail = late.read_bytes()[before:]
    late.write_bytes(late.read_bytes()[:before])
    watching = JournalIndex(folder)

    open_writer(3).append([make_group(5, incarnation=3, text="new")])
    with late.open("ab") as file:
        file.write(tail)
    shutil.copy(late, folder / "1" / "generator-9-0.arrows")
    for index in (watching, JournalIndex(folder)):
        index.refresh()
        assert index.keys() == [1, 5]
        assert text_of(index, 5) == "new"


def test_a_reader_forgets_late_bytes_it_saw_before_the_seal_that_leaves_them_out(
    open_writer, folder: Path, make_group
) -> None:
    zombie = open_writer(1)
    zombie.append([make_group(1)])
    path = folder / "1" / "generator-0-0.arrows"
    short = path.read_bytes()
    zombie.append([make_group(5, text="late")])
    whole = path.read_bytes()
    index = JournalIndex(folder)
    assert index.keys() == [1, 5]
    path.write_bytes(short)
    open_writer(2)
    path.write_bytes(whole)
    index.refresh()
    assert index.keys() == [1]


def test_a_sealed_out_writer_learns_of_it(open_writer, folder: Path, make_group) -> None:
    zombie, unborn = open_writer(2), JournalWriter(folder, "generator-1")
    open_writer(3, "generator-2")
    with pytest.raises(Conflict, match=r"incarnation 2 of .* is sealed"):
        zombie.append([make_group(1)])
    # Sealed although it had not written a byte.
    with pytest.raises(Conflict, match=r"incarnation 1 of .* is sealed"):
        unborn.adopt(1)
    assert JournalIndex(folder).keys() == []


def test_the_first_seal_of_an_incarnation_stays(open_writer, folder: Path, make_group) -> None:
    writer = open_writer(1)
    writer.append([make_group(1)])
    open_writer(2)
    sealed = (folder / "1" / "sealed.json").read_bytes()
    shutil.copy(folder / "1" / "generator-0-0.arrows", folder / "1" / "late-0.arrows")
    open_writer(4)
    assert (folder / "1" / "sealed.json").read_bytes() == sealed
    assert [path.name for path in (folder / "1").iterdir() if path.name.startswith(".")] == []


def test_a_damaged_sealed_segment_is_reported(
    open_writer, folder: Path, make_group, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(1)
    writer.append([make_group(1)])
    writer.append([make_group(2)])
    writer.adopt(2)
    path = folder / "1" / "generator-0-0.arrows"
    path.write_bytes(path.read_bytes()[:-100])
    assert JournalIndex(folder).keys() == [1]
    assert "generator-0-0.arrows was sealed at" in caplog.text


def test_a_segment_of_another_layout_is_refused(open_writer, folder: Path) -> None:
    open_writer()
    with pa.OSFile(str(folder / "1" / "other-0.arrows"), "wb") as sink:
        pa.ipc.new_stream(sink, pa.schema([("key", pa.int64())])).close()
    with pytest.raises(StorageFault, match=r"other-0\.arrows has another layout"):
        JournalIndex(folder)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    with pytest.raises(StorageFault, match=str(tmp_path / "journal")):
        JournalWriter(tmp_path / "journal", "generator-0").adopt(1)


def _fill_up(folder: Path, groups: list) -> None:
    """In a process of its own: the limit on file sizes stands in for a full disk, mid-write."""
    writer = JournalWriter(folder, "generator-0")
    writer.adopt(1)
    writer.append([groups[0]])
    size = (folder / "1" / "generator-0-0.arrows").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    try:
        writer.append([groups[1]])
    except StorageFault as fault:
        (folder / "fault").write_text(str(fault))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.append([groups[2]])


def test_a_full_disk_is_a_storage_fault_and_harms_nothing(folder: Path, make_group) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_fill_up, args=(folder, [make_group(key) for key in range(3)])
    )
    process.start()
    process.join(30)
    assert process.exitcode == 0
    fault = (folder / "fault").read_text()
    assert str(folder / "1" / "generator-0-0.arrows") in fault
    assert "free space" in fault
    torn = (folder / "1" / "generator-0-0.arrows").read_bytes()
    assert JournalIndex(folder).keys() == [0, 2], f"{len(torn)} bytes in the torn segment"
    assert len(segments(folder)) == 2


def test_a_killed_writer_leaves_what_it_appended(folder: Path) -> None:
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from conftest import make_group
from pathlib import Path
from ratchet.journal.writer import JournalWriter
writer = JournalWriter(Path({str(folder)!r}), "generator-0")
writer.adopt(1)
make = make_group.__wrapped__()
for key in range(3):
    writer.append([make(key)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert JournalIndex(folder).keys() == [0, 1, 2]


def test_the_journal_needs_no_torch() -> None:
    code = (
        "import sys, ratchet.journal.reader, ratchet.journal.writer, ratchet.data_plane.memory, "
        "ratchet.rollouts.worker, ratchet.environments.registry\n"
        "print(sorted({'torch', 'ray', 'transformers', 'reasoning_gym'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
