"""Log lines that say whose they are: JSON, or text for people, with run, incarnation and step on every line
of a run.

`configure` once, when a process starts; `about` around what is done for a run.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.spec.faults import SpecError
from ratchet.spec.ids import OpId

FORMAT_VARIABLE = "RATCHET_LOG_FORMAT"
"""`json` or `text`; without it text on a terminal, else JSON."""

NOISY = ("alembic", "httpx", "httpcore", "temporalio", "wandb")
"""Loggers that tell of everything they do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a line is about; what is not known is None."""

    run: str | None = None
    incarnation: int | None = None
    step: int | None = None


_about: ContextVar[Subject | None] = ContextVar("ratchet_log_subject", default=None)
_process = Subject()
"""Of lines outside any `about`, in a process of one run: the newest it has worked on. Not a context variable,
since the threads of engines begin with empty contexts."""
_trace_id: Callable[[], str | None] | None = None


def configure(
    process: str, *, run: str | None = None, incarnation: int | None = None, file: Path | None = None
) -> None:
    """Send every logger's lines from INFO up to stderr and, if there is one, to `file`.

    `process` names it on every line; `run` and `incarnation`: the one run that the whole process serves.
    Raises SpecError for an unknown RATCHET_LOG_FORMAT.
    """
    global _process
    _process = Subject(run, incarnation)
    chosen = os.environ.get(FORMAT_VARIABLE) or ("text" if sys.stderr.isatty() else "json")
    if chosen not in ("json", "text"):
        raise SpecError(f"{FORMAT_VARIABLE} is {chosen!r}: choose json or text")
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(file))
    for handler in handlers:
        handler.setFormatter(Lines(process, as_json=chosen == "json"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def about(run: str, incarnation: int | None = None, step: int | None = None) -> Iterator[None]:
    """Lines inside, in this task and those it starts, are about that."""
    global _process
    if _process.run == run and incarnation is not None:
        _process = Subject(run, incarnation, step)
    token = _about.set(Subject(run, incarnation, step))
    try:
        yield
    finally:
        with suppress(ValueError):  # a task that was thrown away is closed in somebody else's context
            _about.reset(token)


@contextmanager
def about_operation(op: OpId) -> Iterator[None]:
    with about(op.run, op.incarnation, op.step):
        yield


def show_trace_ids(current: Callable[[], str | None]) -> None:
    """From now on lines also name the trace they belong to."""
    global _trace_id
    _trace_id = current


class Lines(logging.Formatter):
    """One line a record, but for tracebacks in text."""

    def __init__(self, process: str, *, as_json: bool) -> None:
        super().__init__()
        self._process = process
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        subject = _subject(record)
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "run": subject.run,
            "incarnation": subject.incarnation,
            "step": subject.step,
            "trace": _trace_id() if _trace_id else None,
            "message": record.getMessage(),
            "error": self.formatException(record.exc_info) if record.exc_info else None,
        }
        line = {key: value for key, value in line.items() if value is not None}
        return json.dumps(line, ensure_ascii=False) if self._as_json else as_text(line)


def _subject(record: logging.LogRecord) -> Subject:
    if subject := _about.get():
        return subject
    # Workflow code says it by itself: its own loop has none of our context.
    info: dict[str, Any] = getattr(record, "temporal_workflow", {})
    return Subject(info["workflow_id"]) if "workflow_id" in info else _process


def as_text(line: dict[str, Any]) -> str:
    """`2026-01-02 10:00:00,100 WARNING api [tiny-3fa2c1/1/12] what happened`, and the traceback below it."""
    at = datetime.fromisoformat(line["at"])
    local = time.strftime("%Y-%m-%d %H:%M:%S", at.astimezone().timetuple())
    subject = "/".join(str(line[key]) for key in ("run", "incarnation", "step") if key in line)
    words = [f"{local},{at.microsecond // 1000:03d}", line["level"], line["process"]]
    words += [f"[{subject}]"] if subject else []
    error = f"\n{line['error']}" if "error" in line else ""
    return f"{' '.join(words)} {line['message']}{error}"


def readable(text: str) -> str:
    """A line of a log for people: a JSON one as text, any other as it is."""
    if text.startswith('{"at": '):
        try:
            return as_text(json.loads(text))
        except (ValueError, KeyError, TypeError):
            pass  # cut off, or somebody else's
    return text
