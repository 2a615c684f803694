"""The database itself: several processes, and one that is locked, full, read-only, damaged or away."""

import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, event

import ratchet
from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError, Unavailable
from ratchet.store import Store

ROOT = Path(ratchet.__file__).parents[1]

RECORDER = """
import sys
from ratchet.spec.control import EventEntry, RecordRequest
from ratchet.store import Store

url, name, both = sys.argv[1:]
store = Store(url)
for n in range(40):
    entries = [EventEntry(key=f"{who}-{n}", topic="test", message="hello") for who in (name, both)]
    store.record(RecordRequest(run="r", incarnation=1, at=float(n), entries=tuple(entries)))
"""


def test_two_processes_record_at_once(store, run, url):
    started = [
        subprocess.Popen([sys.executable, "-c", RECORDER, url, name, "both"], cwd=ROOT) for name in ("a", "b")
    ]
    assert [process.wait(60) for process in started] == [0, 0]
    keys = [e.key for e in store.events(run)]
    assert len(keys) == len(set(keys)) == 120


def test_threads_share_a_store(store, told, run, url):
    shared = Store(url)
    requests = [told.record(told.step(n)) for n in range(1, 41)] * 2
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(shared.record, requests))
    shared.close()
    assert [s.step for s in store.steps(run)] == list(range(1, 41))
    assert store.get_run(run).step == 40


def test_processes_may_register_one_run_at_once(store, told, url):
    shared = Store(url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: shared.register_run(told.register("x"), at=1.0, code={}), range(16)))
    shared.close()
    assert [run.id for run in store.list_runs()] == ["x"]


def test_sqlite_is_set_up_for_several_processes(sqlite_url):
    store = Store(sqlite_url, busy_s=0.1)
    with store._engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    store.close()
    assert settings == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 100}


def test_a_locked_database_is_unavailable_within_its_deadline_while_reads_go_on(store, told, run, raw):
    holder = raw.connect()
    _lock(holder)
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=r"(?s)lock.* .*(process \d+|another session) holds it") as caught:
        store.record(told.record(told.step(1)))
    assert time.monotonic() - begun < 2.0
    assert "\n" not in str(caught.value)
    assert store.get_run(run) is not None
    holder.rollback()
    holder.close()
    store.record(told.record(told.step(1)))


def _lock(holder: Connection) -> None:
    """As a long write does: readers are let through."""
    if holder.dialect.name == "sqlite":
        holder.exec_driver_sql("COMMIT")
        holder.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        holder.exec_driver_sql("LOCK TABLE runs IN EXCLUSIVE MODE")


def test_a_read_only_database_is_unavailable(store, told, run, url):
    if url.startswith("sqlite"):
        read_only = Store(url.replace("sqlite:///", "sqlite:///file:") + "?mode=ro&uri=true")
    else:
        read_only = Store(url + "&options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(Unavailable, match=r"read-?only .*(writable|primary)"):
        read_only.record(told.record(told.step(1)))
    assert read_only.get_run(run) == store.get_run(run)
    read_only.close()


def test_a_full_disk_is_unavailable_and_records_nothing_by_halves(sqlite_url, told):
    def no_more_pages(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size instead

    store, run = Store(sqlite_url, busy_s=0.1), "r"
    store.register_run(told.register(run), at=0.0, code={})
    event.listen(store._engine, "connect", no_more_pages)
    store.close()
    request = told.record(told.step(1), *[told.event(f"e{n}", "x" * 1000) for n in range(100)])
    with pytest.raises(Unavailable, match=r"full .*disk space"):
        store.record(request)
    assert (store.steps(run), store.events(run)) == ([], [])
    event.remove(store._engine, "connect", no_more_pages)
    store.close()
    store.record(request)
    assert len(store.events(run)) == 100
    store.close()


def test_a_file_that_is_no_database_is_unavailable(tmp_path):
    (tmp_path / "store.db").write_bytes(b"not a database, by any means" * 100)
    with pytest.raises(Unavailable, match=r"store\.db: file is not a database .*damaged"):
        Store(f"sqlite:///{tmp_path / 'store.db'}").migrate()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"host": "/nowhere"}, "No such file"),
        ({"host": "127.0.0.1", "port": "1"}, "refused"),
        ({"dbname": "nothing"}, 'database "nothing" does not exist'),
        ({"user": "nobody"}, 'role "nobody" does not exist'),
    ],
)
def test_a_server_that_does_not_let_us_in_is_unavailable_at_once(postgres, change, why):
    query = {"host": postgres.host, "dbname": "postgres", "user": "ratchet", "password": "sesame", **change}
    store = Store("postgresql://?" + "&".join(f"{key}={value}" for key, value in query.items()))
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=why) as caught:
        store.get_run("r")
    assert time.monotonic() - begun < deadlines.STORE_BUSY
    assert "\n" not in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://host/db", "no url at all"])
def test_another_kind_of_database_is_refused_by_name(url):
    with pytest.raises(SpecError, match="postgresql://"):
        Store(url)


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be made"):
        Store(f"sqlite:///{tmp_path / 'file' / 'store.db'}").migrate()


def lets_in(url):
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_password_in_a_file_is_read_again_for_every_connection(postgres, tmp_path):
    database, file = postgres.new_database(), tmp_path / "password"
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("CREATE ROLE filed LOGIN PASSWORD 'first'")
        admin.execute(f"ALTER DATABASE {database} OWNER TO filed")
        hba = Path(admin.execute("SHOW hba_file").fetchone()[0])
        hba.write_text("local all filed scram-sha-256\n" + hba.read_text())
        admin.execute("SELECT pg_reload_conf()")
        url = f"postgresql://filed@/{database}?host={postgres.host}"
        give_up = time.monotonic() + 10.0
        while lets_in(url):  # the server reads its rules again in its own time
            assert time.monotonic() < give_up
        store = Store(f"{url}&password_file={file}")
        with pytest.raises(Unavailable, match=r"password: No such file or directory: mount it"):
            store.migrate()
        file.write_text("first\n")
        store.migrate()
        admin.execute("ALTER ROLE filed PASSWORD 'second'")
        store.close()
        with pytest.raises(Unavailable, match="password authentication failed"):
            store.list_runs()
        file.write_text("second\n")
        assert store.list_runs() == []
        store.close()
        assert "first" not in str(store._engine.url)
