"""TensorBoard's own reader finds every step once, whatever happened to the writer."""

import multiprocessing
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ratchet.sinks.follow import Follow
from ratchet.sinks.reading import Source
from ratchet.sinks.tensorboard import FILE, TensorboardSink
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from ratchet.store.maintenance import forget
from workers import sinks

ON = {"tensorboard": {}}
BEGAN = 1_700_000_000.0
Until = Callable[[Callable[[], Any]], Awaitable[None]]


def curve(folder: Path, tag: str = "loss") -> list[tuple[int, float]]:
    if not folder.exists():
        return []
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    if tag not in reader.Tags()["scalars"]:
        return []
    return [(event.step, round(event.value, 4)) for event in reader.Scalars(tag)]


def losses(*lives: tuple[int, range]) -> list[tuple[int, float]]:
    return [(step, round(n + step / 100, 4)) for n, steps in lives for step in steps]


async def test_steps_and_evaluations_of_a_run_are_in_its_file(
    runs: Any, home: Home, following: Any, until: Until
) -> None:
    runs.register("r", metrics=ON)
    runs.evaluate("r", 0, 0.25)
    runs.train("r", 1, 3)
    async with following():
        await until(lambda: len(curve(home.root / "tensorboard" / "r")) == 3)
        runs.train("r", 4, 4)
        runs.evaluate("r", 4, 0.75)
        runs.end("r")
        await until(lambda: runs.positions.get("r", "tensorboard").ended)
    folder = home.root / "tensorboard" / "r"
    assert curve(folder) == losses((1, range(1, 5)))
    assert curve(folder, "evaluation/accuracy") == [(0, 0.25), (4, 0.75)]
    assert curve(folder, "rollout_s") == [(step, 0.5) for step in range(1, 5)]
    assert curve(folder, "entropy") == []  # it was not a number


async def test_what_a_run_did_just_before_its_end_is_in_its_file(
    runs: Any, home: Home, following: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It all comes between the look that found no news and the look at whether the run has ended."""
    look = Source.run

    def look_at_the_wrong_moment(source: Source, run: str) -> Any:
        if len(curve(home.root / "tensorboard" / run)) == 1:
            runs.train(run, 2, 2)
            runs.end(run)
        return look(source, run)

    monkeypatch.setattr(Source, "run", look_at_the_wrong_moment)
    runs.register("r", metrics=ON)
    runs.train("r", 1, 1)
    async with following():
        await until(lambda: (kept := runs.positions.get("r", "tensorboard")) and kept.ended)
        assert curve(home.root / "tensorboard" / "r") == losses((1, range(1, 3)))


async def test_what_is_trained_again_replaces_what_was_lost(
    runs: Any, home: Home, following: Any, until: Until, tmp_path: Path
) -> None:
    runs.register("r", metrics={"tensorboard": {"folder": str(tmp_path / "shown")}})
    runs.train("r", 1, 6)
    runs.restore("r", 2, 2)
    runs.train("r", 3, 4, incarnation=2)
    runs.end("r", incarnation=2)
    async with following():
        await until(lambda: (kept := runs.positions.get("r", "tensorboard")) and kept.ended)
    assert curve(tmp_path / "shown" / "r") == losses((1, range(1, 3)), (2, range(3, 5)))


async def test_a_run_that_is_resumed_is_followed_again(
    runs: Any, home: Home, following: Any, until: Until
) -> None:
    runs.register("r", metrics=ON)
    runs.train("r", 1, 2)
    runs.end("r")
    async with following():
        await until(lambda: (kept := runs.positions.get("r", "tensorboard")) and kept.ended)
        runs.restore("r", 2, 2)
        runs.train("r", 3, 3, incarnation=2)
        await until(lambda: len(curve(home.root / "tensorboard" / "r")) == 3)
    assert curve(home.root / "tensorboard" / "r") == losses((1, range(1, 3)), (2, range(3, 4)))


async def test_a_run_that_is_forgotten_is_let_go(
    runs: Any, home: Home, following: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    runs.register("r", metrics=ON)
    runs.train("r", 1, 2)
    async with following() as follower:
        await until(lambda: follower.written()["tensorboard"] == 2)
        runs.end("r")
        await until(lambda: runs.positions.get("r", "tensorboard").ended)
        assert forget(runs.store._engine, BEGAN * 2) == ["r"]
        assert runs.positions.get("r", "tensorboard") is None
        await until(lambda: not follower.behind())
    assert "tried again" not in caplog.text


def test_what_was_written_after_the_position_is_not_there_twice(runs: Any, tmp_path: Path) -> None:
    """The moment between the sink and its position, when a process may be killed."""
    runs.register("r", metrics=ON)
    runs.train("r", 1, 2)

    def follow() -> Follow:
        new = Follow(
            "r", "tensorboard", runs.positions, Source(runs.store), lambda: TensorboardSink(tmp_path)
        )
        new.begin()
        return new

    first = follow()
    assert first.advance()
    runs.train("r", 3, 4)

    def killed(*_: object) -> None:
        raise Unavailable("as if killed")

    first._positions = type(runs.positions)(runs.store)
    first._positions.move = killed  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        first.advance()
    first._sink._let_go()  # type: ignore[union-attr]
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"torn")
    second = follow()
    while second.advance():
        pass
    assert second.end()
    assert curve(tmp_path) == losses((1, range(1, 5)))


async def test_a_deleted_folder_is_written_anew(runs: Any, home: Home, following: Any, until: Until) -> None:
    folder = home.root / "tensorboard" / "r"
    runs.register("r", metrics=ON)
    runs.train("r", 1, 3)
    async with following():
        await until(lambda: len(curve(folder)) == 3)
    shutil.rmtree(folder)
    runs.train("r", 4, 5)
    async with following():
        await until(lambda: len(curve(folder)) == 5)
    assert curve(folder) == losses((1, range(1, 6)))


def test_kill_9_neither_drops_nor_doubles(runs: Any, home: Home) -> None:
    """The real process, killed again and again in the middle of its work."""
    names = ["r0", "r1"]
    for run in names:
        runs.register(run, metrics=ON)
        runs.train(run, 1, 480)
        runs.restore(run, 2, 450)
        runs.train(run, 451, 540, incarnation=2)
        runs.end(run, incarnation=2)

    def seen() -> tuple[int, bool]:
        found = [runs.positions.get(run, "tensorboard") for run in names]
        return sum(kept.after for kept in found if kept), all(kept and kept.ended for kept in found)

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["workers.sinks"])
    random = Random(0)
    before, ended = seen()
    while not ended:
        process = context.Process(target=sinks.main, args=(home,))
        process.start()
        while process.is_alive() and seen() == (before, False):
            process.join(0.002)
        process.join(random.uniform(0.0, 0.03))  # a page takes about so long
        process.kill()
        process.join()
        process.close()
        before, ended = seen()
    for run in names:
        expected = losses((1, range(1, 451)), (2, range(451, 541)))
        assert curve(home.root / "tensorboard" / run) == expected
