"""One database, whoever opens it and whatever it was before."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect

import ratchet
from ratchet.spec.faults import Unavailable
from ratchet.store import Store
from ratchet.store.models import Base

ROOT = Path(ratchet.__file__).parents[1]

KILLED_HALFWAY = """
import os, signal, sys
from sqlalchemy import Engine, event
from ratchet.store import Store

@event.listens_for(Engine, "before_cursor_execute")
def die(connection, cursor, statement, *rest):
    if "CREATE TABLE evaluations" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

Store(sys.argv[1]).migrate()
"""


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def tables(url: str) -> set[str]:
    raw = sqlite3.connect(file_of(url))
    found = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    raw.close()
    return found


def test_models_and_migrations_agree(store, url, tmp_path):
    migrated = create_engine(url)
    with migrated.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    # Alembic does not compare checks and primary keys; a database made from the models shows them.
    modelled = create_engine(f"sqlite:///{tmp_path / 'modelled.db'}")
    Base.metadata.create_all(modelled)
    for table in Base.metadata.tables:
        for part in ("get_columns", "get_pk_constraint", "get_foreign_keys", "get_unique_constraints"):
            assert repr(getattr(inspect(migrated), part)(table)) == repr(
                getattr(inspect(modelled), part)(table)
            )
        checks = [
            sorted(check["sqltext"] for check in inspect(engine).get_check_constraints(table))
            for engine in (migrated, modelled)
        ]
        assert checks[0] == checks[1]
    migrated.dispose()
    modelled.dispose()


def test_constraints_are_named_by_the_convention(store, url):
    raw = sqlite3.connect(file_of(url))
    made = " ".join(sql for (sql,) in raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
    raw.close()
    for name in ("pk_steps", "fk_steps_run_incarnation_incarnations", "uq_events_run_incarnation_key"):
        assert name in made
    assert "ix_runs_created_at_id" in made
    assert "ck_steps_cursor_range" in made


def test_migrating_again_changes_nothing(store, told, run, url):
    before = store.get_run(run)
    Store(url).migrate()
    assert store.get_run(run) == before


def test_an_upgrade_killed_halfway_leaves_nothing_and_is_done_again(url, told):
    killed = subprocess.run([sys.executable, "-c", KILLED_HALFWAY, url], cwd=ROOT, timeout=60)
    assert killed.returncode == -9
    assert tables(url) == set()
    store = Store(url)
    store.migrate()
    store.register_run(told.register(), at=0.0, code={})
    assert store.get_run("r") is not None
    store.close()


def test_an_older_database_is_upgraded(url):
    # As Alembic leaves it at its base: the version table, and no revision in it.
    Path(file_of(url)).parent.mkdir(parents=True)
    raw = sqlite3.connect(file_of(url))
    raw.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    raw.commit()
    raw.close()
    Store(url).migrate()
    assert set(Base.metadata.tables) < tables(url)


def test_a_database_of_a_newer_ratchet_is_refused_and_left_alone(store, url):
    raw = sqlite3.connect(file_of(url))
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    with pytest.raises(Unavailable, match="newer Ratchet"):
        Store(url).migrate()
    assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
    raw.close()


def test_several_processes_may_start_at_once(url):
    code = "import sys; from ratchet.store import Store; Store(sys.argv[1]).migrate()"
    started = [subprocess.Popen([sys.executable, "-c", code, url], cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert set(Base.metadata.tables) < tables(url)
