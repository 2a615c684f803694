"""Database engines: SQLite and Postgres set up for several processes, and their errors as Ratchet's own."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, InterfaceError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ratchet.spec.faults import SpecError, Unavailable
from ratchet.store.write_lock import writers

_BEGIN = "sqlite_begin"
PASSWORD_FILE = "password_file"
"""Of a URL's query, which may then stand in an environment without holding a secret."""

_BUSY = "SQLITE_BUSY"
_FIXES = {
    _BUSY: "another process holds it; find it with `fuser`",
    "SQLITE_FULL": "free some disk space",
    "SQLITE_IOERR": "check the disk and its free space",
    "SQLITE_READONLY": "make the file and its folder writable",
    "SQLITE_CANTOPEN": "check that its folder exists and is writable",
    "SQLITE_NOTADB": "it is damaged or no SQLite file; move it away or restore a copy",
    "SQLITE_CORRUPT": "it is damaged; move it away or restore a copy",
    # Postgres: SQLSTATE, or its class.
    "55P03": "another session holds it; find it in pg_stat_activity",
    "57014": "another session holds it, or the server is overloaded; see pg_stat_activity",
    "53100": "free some disk space on the server",
    "53300": "raise max_connections, or stop other clients",
    "42501": "grant the user the rights of the owner",
    "25006": "connect to the primary",
}


def open_engine(url: str, busy_s: float, statement_s: float | None = None) -> Engine:
    """An engine for `url`: a SQLAlchemy URL, or a libpq one (`postgres://`, `postgresql://`). Opens nothing.
    For a server, `?password_file=PATH` names a file with the password, read for every new connection.

    `busy_s`: seconds to wait for a lock, and for a server to be reached; `statement_s`: for one statement of
    a server, `busy_s` if it is not given. Raises SpecError for a URL that cannot be used.
    """
    try:
        parsed = make_url(url)
    except Exception as error:
        raise SpecError(
            "RATCHET_STORE is no database URL: give one like postgresql://user@host/ratchet"
        ) from error
    if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return _open_postgres(parsed.set(drivername="postgresql+psycopg"), busy_s, statement_s or busy_s)
    if not parsed.drivername.startswith("sqlite"):
        raise SpecError(f"a store on {parsed.drivername} is not supported: use postgresql:// or sqlite:///")
    engine = create_engine(parsed, connect_args={"timeout": busy_s})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _open_postgres(url: URL, busy_s: float, statement_s: float) -> Engine:
    try:
        from ratchet.store.postgres import connect, drop_if_gone
    except ImportError as error:
        raise SpecError("a store on Postgres needs psycopg: pip install 'ratchet[postgres]'") from error
    password_file = url.query.get(PASSWORD_FILE)
    engine = create_engine(url.difference_update_query([PASSWORD_FILE]), pool_timeout=busy_s)

    def do_connect(
        _dialect: object, _record: object, args: tuple[Any, ...], options: dict[str, Any]
    ) -> object:
        if password_file is not None:
            options["password"] = _password(Path(str(password_file)))
        return connect(*args, busy_s=busy_s, statement_s=statement_s, **options)

    event.listen(engine, "do_connect", do_connect)
    event.listen(engine, "checkout", drop_if_gone)
    return engine


def _password(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise Unavailable(
            f"{PASSWORD_FILE} {file}: {error.strerror}: mount it, or make it readable"
        ) from error


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Python would begin transactions by itself, too late and never around DDL.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # With a write-ahead log a killed process loses nothing; a power cut may lose the last commits, which
    # can be rebuilt: the store is a projection.
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def for_reading(engine: Engine) -> Engine:
    """The same engine, whose transactions see one moment however many statements they have."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def for_writing(engine: Engine) -> Engine:
    """The same engine, whose transactions take SQLite's write lock at once: a transaction that reads first
    and writes later fails without waiting when another one wrote in between. (On Postgres a write locks its
    run's row first, and sees what was committed before it got the lock.)"""
    return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})


@contextmanager
def database_errors(engine: Engine) -> Generator[None, None, None]:
    """Turn what a database raises when it is away, locked, full or damaged into Unavailable."""
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError) as error:
        if _fix(_code(error)) is None:
            raise  # a defect, not the weather
        raise Unavailable(_explain(engine, error)) from error
    except (DatabaseError, InterfaceError, PoolTimeout, sqlite3.Error) as error:
        raise Unavailable(_explain(engine, error)) from error


def where(engine: Engine) -> str:
    """The database in words, without a password."""
    url = engine.url
    if engine.dialect.name == "sqlite":
        return str(url.database)
    host, database = url.host or url.query.get("host", "localhost"), url.database or url.query.get("dbname")
    return f"{host}/{database or url.username}"


def _explain(engine: Engine, error: Exception) -> str:
    fix = _fix(_code(error))
    if _code(error).startswith(_BUSY) and (holders := writers(Path(str(engine.url.database)))):
        fix = f"process {', '.join(map(str, holders))} holds it: see `ps -o pid,stat,args`"
    line = " ".join(str(getattr(error, "orig", None) or error).split())
    return f"store {where(engine)}: {line}" + (f" ({fix})" if fix else "")


def _code(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or "")


def _fix(code: str) -> str | None:
    return next((fix for name, fix in _FIXES.items() if code.startswith(name)), None)
