"""One database, whoever opens it and whatever it was before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text

import ratchet
from ratchet.spec.faults import SpecError, Unavailable
from ratchet.store import Store
from ratchet.store.engine import open_engine
from ratchet.store.migrate import migrate, revisions
from ratchet.store.models import Base

ROOT = Path(ratchet.__file__).parents[1]
FIRST_ROWS = Path(__file__).parent / "rows_of_0001.json"
"""A run as the first revision keeps it: trained, restored, extended, forked."""

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

VIEWS = {"rollout_batches", "weight_versions", "incidents"}


@pytest.fixture
def empty(empty_url: str):
    """An engine for a database that was never migrated."""
    if empty_url.startswith("sqlite"):
        Path(empty_url.removeprefix("sqlite:///")).parent.mkdir(parents=True)
    engine = open_engine(empty_url, busy_s=5.0)
    yield engine
    engine.dispose()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_models_and_migrations_agree(store, raw, tmp_path):
    with raw.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_models_and_migrations_agree_on_checks_and_keys(sqlite_url, tmp_path):
    # Alembic does not compare checks and primary keys; a database made from the models shows them.
    migrated = create_engine(sqlite_url)
    modelled = create_engine(f"sqlite:///{tmp_path / 'modelled.db'}")
    Base.metadata.create_all(modelled)
    for table in Base.metadata.tables:
        for part in ("get_pk_constraint", "get_foreign_keys", "get_unique_constraints"):
            assert repr(getattr(inspect(migrated), part)(table)) == repr(
                getattr(inspect(modelled), part)(table)
            )
        columns = [
            sorted(repr(column) for column in inspect(engine).get_columns(table))
            for engine in (migrated, modelled)
        ]
        checks = [
            sorted(check["sqltext"] for check in inspect(engine).get_check_constraints(table))
            for engine in (migrated, modelled)
        ]
        assert columns[0] == columns[1]
        assert checks[0] == checks[1]
    migrated.dispose()
    modelled.dispose()


def test_constraints_are_named_by_the_convention(raw):
    found = inspect(raw)
    assert found.get_pk_constraint("steps")["name"] == "pk_steps"
    assert [key["name"] for key in found.get_foreign_keys("steps")] == [
        "fk_steps_run_incarnation_incarnations"
    ]
    assert "uq_events_run_incarnation_key" in {key["name"] for key in found.get_unique_constraints("events")}
    assert "ix_runs_created_at_id" in {index["name"] for index in found.get_indexes("runs")}
    checks = " ".join(str(check["name"]) for check in found.get_check_constraints("steps"))
    assert "ck_steps_cursor_range" in checks


def test_migrating_again_changes_nothing(store, told, run, url):
    before = store.get_run(run)
    Store(url).migrate()
    assert store.get_run(run) == before


def test_an_upgrade_killed_halfway_leaves_nothing_and_is_done_again(empty_url, empty, told):
    killed = subprocess.run([sys.executable, "-c", KILLED_HALFWAY, empty_url], cwd=ROOT, timeout=60)
    assert killed.returncode == -9
    assert tables(empty) == set()
    store = Store(empty_url)
    store.migrate()
    store.register_run(told.register(), at=0.0, code={})
    assert store.get_run("r") is not None
    store.close()


def test_a_database_that_alembic_left_at_its_base_is_upgraded(empty_url, empty):
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
    Store(empty_url).migrate()
    assert set(Base.metadata.tables) < tables(empty)


def test_a_database_of_a_newer_ratchet_is_refused_and_left_alone(url, raw):
    with raw.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Unavailable, match="newer Ratchet"):
        Store(url).migrate()
    assert revisions(raw)[0] == "9999"


def test_an_unknown_revision_is_refused_by_name(empty):
    with pytest.raises(SpecError, match="no revision 0099: 0001, 0002"):
        migrate(empty, "0099")
    assert tables(empty) == set()


def test_several_processes_may_start_at_once(empty_url, empty):
    code = "import sys; from ratchet.store import Store; Store(sys.argv[1]).migrate()"
    started = [subprocess.Popen([sys.executable, "-c", code, empty_url], cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert set(Base.metadata.tables) < tables(empty)


def test_a_database_of_the_first_revision_goes_to_the_newest_and_down_again(empty_url, empty):
    rows = json.loads(FIRST_ROWS.read_text())
    migrate(empty, "0001")
    at_first = columns_of(empty)
    insert(empty, rows)
    before = dump(empty, rows)

    migrate(empty)
    store = Store(empty_url)
    assert [(life.number, life.parent_run, life.parent_incarnation) for life in store.incarnations("r")] == [
        (1, None, None),
        (2, "r", 1),
    ]
    (fork,) = store.incarnations("f")
    assert (fork.parent_run, fork.parent_incarnation, fork.restored_step) == ("r", 2, 4)
    digests = {(step.incarnation, step.step): step.rollout_digest for step in store.steps("r")}
    assert digests == {
        (incarnation, step): "base" if step == 1 else f"{1 if step == 3 else incarnation}-{step - 1}"
        for incarnation, step in digests
    }
    store.close()
    with empty.connect() as connection:
        versions = connection.execute(text("SELECT count(*) FROM weight_versions")).scalar()
    assert versions == len(rows["steps"]) + len(rows["incarnations"])

    migrate(empty, "0001")
    assert columns_of(empty) == at_first
    assert not VIEWS & set(inspect(empty).get_view_names())
    assert dump(empty, rows) == before
    migrate(empty)
    migrate(empty, "base")
    assert tables(empty) <= {"alembic_version"}


def columns_of(engine: Engine) -> dict[str, list[str]]:
    found = inspect(engine)
    return {
        table: [column["name"] for column in found.get_columns(table)] for table in sorted(tables(engine))
    }


def insert(engine: Engine, rows: dict[str, list[dict[str, object]]]) -> None:
    with engine.begin() as connection:
        for table in ("runs", "incarnations", "steps", "checkpoints", "evaluations", "events"):
            for row in rows[table]:
                flat = {
                    key: json.dumps(value) if isinstance(value, dict) else value for key, value in row.items()
                }
                names = ", ".join(flat)
                values = ", ".join(f":{name}" for name in flat)
                connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), flat)


def dump(engine: Engine, rows: dict[str, list[dict[str, object]]]) -> dict[str, list[list[object]]]:
    with engine.connect() as connection:
        return {
            table: sorted(
                [
                    [json.dumps(value) if isinstance(value, dict) else value for value in row]
                    for row in connection.execute(text(f"SELECT {', '.join(told[0])} FROM {table}"))
                ],
                key=repr,
            )
            for table, told in rows.items()
        }
