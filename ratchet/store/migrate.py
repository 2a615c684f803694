"""Bringing a database to a revision, the newest as a rule."""

import fcntl
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, func, select

from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError, Unavailable
from ratchet.store.engine import database_errors, for_writing, where

SCRIPTS = Path(__file__).parents[2] / "migrations"
"""The Alembic environment, installed beside this package."""
HEAD, BASE = "head", "base"
_LOCK = 0x7261746368657400
"""Of Postgres, held by whoever upgrades; any number that nobody else uses."""


def migrate(engine: Engine, to: str = HEAD) -> None:
    """Make the database if there is none, and bring it to a revision, the newest unless another is named: all
    of it or nothing, one process at a time. Going down loses what the older revision has no place for.

    Raises Unavailable when it cannot be written, or was written by a newer Ratchet.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    sqlite = engine.dialect.name == "sqlite"
    with _alone(Path(str(engine.url.database))) if sqlite else nullcontext(), database_errors(engine):
        if sqlite:
            # A lasting property of the file, set here because two processes that set it at once fail.
            with closing(engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA journal_mode = WAL")
        with for_writing(engine).begin() as connection:
            if not sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            found = _revision(connection)
            known = [script.revision for script in scripts.walk_revisions()]
            if found is not None and found not in known:
                raise Unavailable(
                    f"store {where(engine)} was written by a newer Ratchet (its revision is {found}): "
                    "upgrade this one"
                )
            if to not in (HEAD, BASE, *known):
                raise SpecError(f"there is no revision {to}: {', '.join(reversed(known))} are known")
            config.attributes["connection"] = connection
            if _below(to, found, known):
                command.downgrade(config, to)
            else:
                command.upgrade(config, to)


def revisions(engine: Engine) -> tuple[str | None, str]:
    """The revision of the database (None: it has no tables yet), and the newest one there is."""
    with database_errors(engine), engine.connect() as connection:
        newest = ScriptDirectory.from_config(_config()).get_current_head()
        assert newest is not None
        return _revision(connection), newest


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _below(to: str, found: str | None, known: list[str]) -> bool:
    """`known`: the newest first."""
    if to == HEAD or found is None:
        return False
    return to == BASE or known.index(to) > known.index(found)


@contextmanager
def _alone(database: Path) -> Generator[None, None, None]:
    """Hold the lock file beside a database; whoever else wants it waits, and a dead holder frees it."""
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = Path(f"{database}.lock").open("ab")
    except OSError as error:
        raise Unavailable(
            f"store {database} cannot be made: {error.strerror} (choose another folder)"
        ) from error
    with lock:
        give_up = time.monotonic() + deadlines.STORE_MIGRATE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise Unavailable(
                        f"store {database}: another process has been upgrading it for "
                        f"{deadlines.STORE_MIGRATE:g} s (look at it with `fuser {lock.name}`)"
                    ) from None
                time.sleep(0.02)
        yield
