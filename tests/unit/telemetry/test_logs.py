"""Lines say which process wrote them and, if they belong to a run, which run, incarnation and step."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from ratchet.spec.control import RecordRequest
from ratchet.spec.faults import SpecError
from ratchet.spec.ids import OpId, OpKind
from ratchet.telemetry import logs
from workers.telemetry import Subjects

logger = logging.getLogger("somebody")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    monkeypatch.setattr(logs, "_process", logs.Subject())
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def place(line: dict[str, object]) -> tuple[object, ...]:
    return tuple(line.get(key) for key in ("run", "incarnation", "step"))


async def test_what_is_done_for_a_run_says_so_in_every_task_and_thread_it_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("control-worker")
    logger.info("nobody's")

    async def work(step: int) -> None:
        with logs.about_operation(OpId(run="r", incarnation=2, step=step, kind=OpKind.TRAIN_STEP)):
            await asyncio.create_task(asyncio.sleep(0))
            await asyncio.to_thread(logger.warning, "step %d", step)

    await asyncio.gather(work(7), work(8))
    first, *others = said(capsys)
    assert place(first) == (None, None, None)
    assert (first["process"], first["level"], first["message"]) == ("control-worker", "INFO", "nobody's")
    assert {(line["message"], *place(line)) for line in others} == {
        ("step 7", "r", 2, 7),
        ("step 8", "r", 2, 8),
    }


def test_a_process_of_one_run_says_the_newest_it_worked_on(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("trainer", run="r", incarnation=1)
    logger.info("starts")
    with logs.about("r", 3, 12):
        pass
    thread = threading.Thread(target=logger.info, args=("from a thread of an engine",))
    thread.start()
    thread.join()
    assert [place(line) for line in said(capsys)] == [("r", 1, None), ("r", 3, 12)]


@pytest.mark.parametrize(
    ("activity", "argument", "expected"),
    [
        ("r/2/7/train_step", None, ("r", 2, 7)),
        ("11", RecordRequest(run="r", incarnation=3, at=0.0, entries=()), ("r", 3, None)),
        ("12", None, ("r", None, None)),
    ],
)
async def test_activities_say_what_they_are_for(
    activity: str, argument: object, expected: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("control-worker")
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_id="r", activity_id=activity)

    class Activity:
        async def execute_activity(self, _: Any) -> None:
            logger.warning("something")

    async def executed() -> None:
        given: Any = SimpleNamespace(args=[argument])
        await Subjects().intercept_activity(cast(Any, Activity())).execute_activity(given)

    await environment.run(executed)
    assert [place(line) for line in said(capsys)] == [expected]


def test_text_is_for_people_and_json_can_be_read_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def complain() -> str:
        with logs.about("r", 1, 2):
            try:
                raise ValueError("no such thing")
            except ValueError:
                logger.exception("it failed")
        return capsys.readouterr().err

    logs.configure("api")
    line = complain()
    assert line.count("\n") == 1
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "text")
    logs.configure("api")
    text = complain()
    assert text.splitlines()[0].endswith(" ERROR api [r/1/2] it failed")
    assert "ValueError: no such thing" in text
    assert logs.readable(line.rstrip()).splitlines()[0][23:] == text.splitlines()[0][23:]
    assert logs.readable("plain {words}") == "plain {words}"
    assert logs.readable('{"at": "cut off') == '{"at": "cut off'


def test_an_unknown_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "xml")
    with pytest.raises(SpecError, match="RATCHET_LOG_FORMAT is 'xml': choose json or text"):
        logs.configure("api")


def test_only_one_module_sets_logging_up() -> None:
    """Whoever calls basicConfig beside it takes run and step from the lines of its process."""
    root = Path(logs.__file__).parents[2]
    packages = ("ratchet", "workers", "api", "activities", "workflows")
    found = [
        str(path.relative_to(root))
        for package in packages
        for path in (root / package).rglob("*.py")
        if "basicConfig(" in path.read_text()
    ]
    assert found == ["ratchet/telemetry/logs.py"]
