"""Collecting a journal: what a restore may need stays, and what counts does not change hands."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ratchet.journal.reader import JournalIndex
from ratchet.journal.retention import collect
from ratchet.journal.writer import JournalWriter


@pytest.fixture
def open_writer(open_writer: Callable[..., JournalWriter]) -> Callable[..., JournalWriter]:
    return partial(open_writer, segment_bytes=1)  # a segment per append


def segments(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*.arrows"))


def text_of(folder: Path, key: int) -> str:
    return JournalIndex(folder).groups([key])[key].samples[0].text


def test_segments_below_the_cursor_go_and_the_rest_reads_as_before(
    open_writer, folder: Path, make_group, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(1)
    for keys in ((0, 1), (2, 3), (4, 5)):
        writer.append([make_group(key) for key in keys])
    writer.adopt(2)
    writer.append([make_group(6, incarnation=2)])
    watching = JournalIndex(folder)
    sizes = {name: (folder / name).stat().st_size for name in segments(folder)}

    freed = collect(folder, 3)
    assert sizes.keys() - set(segments(folder)) == {"1/generator-0-0.arrows"}
    assert freed == sizes["1/generator-0-0.arrows"]
    watching.refresh()
    for index in (watching, JournalIndex(folder)):
        assert index.keys() == [2, 3, 4, 5, 6]
        assert set(index.groups(range(7))) == {2, 3, 4, 5, 6}
    assert caplog.text == ""
    assert collect(folder, 3) == 0


def test_a_segment_that_may_still_be_written_stays(open_writer, folder: Path, make_group) -> None:
    writer = open_writer(1)
    writer.append([make_group(0)])
    writer.append([make_group(1)])
    open_writer(1, "generator-1").append([make_group(2)])
    assert collect(folder, 100) > 0
    assert JournalIndex(folder).keys() == [1, 2]
    # The next segment goes past the gap: in it, it would come before what is there.
    writer.append([make_group(3)])
    writer.append([make_group(1, text="again")])
    assert JournalIndex(folder).keys() == [1, 2, 3]
    assert text_of(folder, 1) != "again"
    # Sealed, all of it may go.
    open_writer(2, "generator-2")
    collect(folder, 100)
    assert segments(folder) == ["2/generator-2-0.arrows"]
    assert JournalIndex(folder).keys() == []


def test_a_key_never_falls_to_a_later_record(open_writer, folder: Path, make_group) -> None:
    first = open_writer(1)
    first.append([make_group(0, text="first")])
    late = open_writer(1, "generator-1")
    late.append([make_group(0, text="late"), make_group(9)])
    open_writer(2)
    assert collect(folder, 5) == 0
    assert text_of(folder, 0) == "first"
    assert collect(folder, 10) > 0
    assert JournalIndex(folder).keys() == []


def test_late_segments_of_a_sealed_incarnation_are_garbage(open_writer, folder: Path, make_group) -> None:
    open_writer(1).append([make_group(3)])
    name = "1/generator-0-0.arrows"
    zombie = (folder / name).read_bytes()
    open_writer(2)
    (folder / "1" / "generator-9-0.arrows").write_bytes(zombie)
    assert collect(folder, 0) == len(zombie)
    assert name in segments(folder)
    assert JournalIndex(folder).keys() == [3]


def test_a_sealed_segment_that_is_gone_is_reported(
    open_writer, folder: Path, make_group, caplog: pytest.LogCaptureFixture
) -> None:
    open_writer(1).append([make_group(3)])
    open_writer(2)
    (folder / "1" / "generator-0-0.arrows").unlink()
    index = JournalIndex(folder)
    assert index.keys() == []
    assert "1/generator-0-0.arrows was sealed at" in caplog.text
    assert "is gone" in caplog.text
    caplog.clear()
    index.refresh()
    assert caplog.text == ""  # once is enough


def test_a_journal_that_does_not_exist_has_no_garbage(folder: Path) -> None:
    assert collect(folder / "nowhere", 10) == 0


def _collect_and_die(folder: Path, point: int) -> None:
    left = [point]

    def before(real: Callable[..., object]) -> Callable[..., object]:
        def strike(*args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return strike

    for name in ("unlink", "replace", "fsync"):
        setattr(os, name, before(getattr(os, name)))
    collect(folder, 4)


def test_killed_anywhere_only_garbage_is_missing_and_the_next_call_finishes(
    open_writer, folder: Path, tmp_path: Path, make_group, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(1)
    for key in range(6):
        writer.append([make_group(key)])
    writer.append([make_group(0, text="late")])
    writer.adopt(2)
    deaths = 0
    for point in range(1, 100):
        copy = tmp_path / str(point)
        shutil.copytree(folder, copy)
        process = multiprocessing.get_context("fork").Process(target=_collect_and_die, args=(copy, point))
        process.start()
        process.join(30)
        keys = JournalIndex(copy).keys()
        assert {4, 5} <= set(keys) <= set(range(6)), point
        if 0 in keys:
            assert text_of(copy, 0) != "late", point
        collect(copy, 4)
        assert JournalIndex(copy).keys() == [4, 5]
        assert len(segments(copy)) == 3  # the third is the open one
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        deaths += 1
    assert deaths >= 5 * 4  # five segments, four calls each
    assert caplog.text == ""
