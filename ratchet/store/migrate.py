"""Bringing a database to the newest revision."""

import fcntl
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.store.engine import database_errors, for_writing

SCRIPTS = Path(__file__).parents[2] / "migrations"
"""The Alembic environment, installed beside this package."""


def migrate(engine: Engine) -> None:
    """Make the database if there is none, and upgrade it: all of it or nothing, one process at a time.

    Raises Unavailable when it cannot be written, or was written by a newer Ratchet.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    sqlite = engine.dialect.name == "sqlite"
    with _alone(Path(str(engine.url.database))) if sqlite else nullcontext(), database_errors(engine):
        if sqlite:
            # A lasting property of the file, set here because two processes that set it at once fail.
            with closing(engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA journal_mode = WAL")
        with for_writing(engine).begin() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            if found is not None and found not in known:
                raise Unavailable(
                    f"store {engine.url.database} was written by a newer Ratchet (its revision is {found}): "
                    "upgrade this one"
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


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
