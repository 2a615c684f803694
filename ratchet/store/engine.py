"""Database engines: SQLite set up for several processes, and database errors as Ratchet's own."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, InterfaceError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ratchet.spec.faults import Unavailable

_BEGIN = "sqlite_begin"

_FIXES = {
    "SQLITE_BUSY": "another process holds it; find it with `fuser`",
    "SQLITE_FULL": "free some disk space",
    "SQLITE_IOERR": "check the disk and its free space",
    "SQLITE_READONLY": "make the file and its folder writable",
    "SQLITE_CANTOPEN": "check that its folder exists and is writable",
    "SQLITE_NOTADB": "it is damaged or no SQLite file; move it away or restore a copy",
    "SQLITE_CORRUPT": "it is damaged; move it away or restore a copy",
}


def open_engine(url: str, busy_s: float) -> Engine:
    """An engine for `url`. `busy_s`: seconds to wait for another process's write lock (SQLite)."""
    if not url.startswith("sqlite"):
        return create_engine(url)
    engine = create_engine(url, connect_args={"timeout": busy_s})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Python would begin transactions by itself, too late and never around DDL.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # With a write-ahead log a killed process loses nothing; a power cut may lose the last commits, which
    # can be rebuilt: the store is a projection.
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def for_writing(engine: Engine) -> Engine:
    """The same engine, whose transactions take SQLite's write lock at once: a transaction that reads first
    and writes later fails without waiting when another one wrote in between."""
    return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})


@contextmanager
def database_errors(engine: Engine) -> Generator[None, None, None]:
    """Turn what a database raises when it is away, locked, full or damaged into Unavailable."""
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise  # a defect, not the weather
    except (DatabaseError, InterfaceError, PoolTimeout, sqlite3.Error) as error:
        raise Unavailable(_explain(engine, error)) from error


def _explain(engine: Engine, error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    where = engine.url.database if engine.dialect.name == "sqlite" else engine.url.render_as_string()
    code = str(getattr(cause, "sqlite_errorname", ""))
    fix = next((fix for name, fix in _FIXES.items() if code.startswith(name)), None)
    line = " ".join(str(cause).split())
    return f"store {where}: {line}" + (f" ({fix})" if fix else "")
