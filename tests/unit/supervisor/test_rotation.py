"""Logs stay small while their writers keep them open."""

from pathlib import Path

import pytest

from workers.supervisor import rotation
from workers.supervisor.rotation import KEPT, rotate


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "LARGEST_BYTES", 10)


def test_a_writer_goes_on_in_the_emptied_log_and_nothing_young_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    with log.open("ab", buffering=0) as writer:
        for number in range(KEPT + 2):
            writer.write(b"%d: eleven bytes" % number)
            assert rotate(log)
            assert log.stat().st_size == 0
        writer.write(b"after")
        assert not rotate(log), "it is small"
    assert log.read_bytes() == b"after"
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["api.log", *(f"api.log.{number}" for number in range(1, KEPT + 1))]
    contents = [(tmp_path / name).read_bytes()[:1] for name in kept[1:]]
    assert contents == [b"%d" % number for number in range(KEPT + 1, 1, -1)], "newest first"


def test_a_log_is_emptied_even_if_there_is_no_room_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    log = tmp_path / "api.log"
    log.write_bytes(b"x" * 100)
    monkeypatch.setattr("shutil.copyfile", full)
    assert rotate(log)
    assert log.stat().st_size == 0
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "none.log")
    assert list(tmp_path.iterdir()) == []
