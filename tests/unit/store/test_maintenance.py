"""What an operator does to a store, by the command they type."""

import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

import ratchet
from ratchet.spec.home import STORE_VARIABLE
from ratchet.store import Lineage, Store
from ratchet.store.__main__ import main
from ratchet.store.maintenance import check, forget

ROOT = Path(ratchet.__file__).parents[1]


def ended(store, told, run, *, at, parent=None):
    store.register_run(told.register(run, execution=run), at=0.0, code={})
    grown = told.restore(1, 1, told.folder(parent, 1, 1), parent=1) if parent else told.restore(0)
    step = 2 if parent else 1
    saved = told.saved(run, 1, step)
    record = told.record(grown, told.step(step), saved, told.evaluation(step), told.event("e"), run=run)
    store.record(record)
    store.record(told.record(told.state("completed", step), run=run, at=at))


def test_old_runs_are_forgotten_whole_and_what_others_grew_from_is_kept(store, told, raw):
    ended(store, told, "old", at=100.0)
    ended(store, told, "parent", at=100.0)
    ended(store, told, "child", at=900.0, parent="parent")
    store.register_run(told.register("open"), at=0.0, code={})
    assert forget(raw, ended_before=500.0) == ["old"]
    assert {run.id for run in store.list_runs()} == {"parent", "child", "open"}
    with raw.connect() as connection:
        for table in ("incarnations", "steps", "checkpoints", "evaluations", "events", "outbox"):
            left = connection.execute(text(f"SELECT count(*) FROM {table} WHERE run = 'old'")).scalar()
            assert left == 0
        assert connection.execute(text("SELECT count(*) FROM forgetting")).scalar() == 0
    assert [life.run for life in Lineage(store).up("child", 1, 2).lives] == ["child", "parent"]
    assert forget(raw, ended_before=1000.0) == ["child", "parent"]
    assert {run.id for run in store.list_runs()} == {"open"}


def test_a_forgotten_run_may_be_told_again(store, told, raw):
    ended(store, told, "r", at=100.0)
    forget(raw, ended_before=500.0)
    ended(store, told, "r", at=100.0)
    assert [step.step for step in store.steps("r")] == [1]


def test_a_sound_store_has_no_problems(family, raw):
    assert check(raw) == []


def test_an_orphan_is_found_and_said_how_to_mend(store, told, raw):
    store.register_run(told.register("r"), at=0.0, code={})
    store.record(told.record(told.restore(4, 1, told.folder("gone", 2, 4), parent=2)))
    assert check(raw) == ["incarnation 1 of run r grew from run gone: `ratchet rebuild store gone`"]


def test_a_step_from_before_its_incarnation_is_found(store, told, run, raw):
    store.record(told.record(told.restore(4, 2), told.step(3, 2), incarnation=2))
    assert check(raw) == ["incarnation 2 of run r has a step 3 from before it began"]


def test_a_damaged_file_is_found(sqlite_url, monkeypatch, capsys, told):
    store = Store(sqlite_url)
    store.register_run(told.register("r"), at=0.0, code={})
    store.record(told.record(*[told.event(f"e{n}", "x" * 500) for n in range(200)]))
    store.close()
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    file.write_bytes(content)
    monkeypatch.setenv(STORE_VARIABLE, sqlite_url)
    assert main(["check"]) == 1
    said = "".join(capsys.readouterr())
    assert "restore a copy" in said


def test_the_commands_go_to_the_database_that_the_environment_names(empty_url, monkeypatch, capsys, told):
    monkeypatch.setenv(STORE_VARIABLE, empty_url)
    assert main(["migrate", "--to", "0002"]) == 0
    assert main(["check"]) == 1
    assert main(["migrate"]) == 0
    store = Store(empty_url)
    ended(store, told, "old", at=100.0)
    store.close()
    assert main(["check"]) == 0
    assert main(["vacuum", "--forget", "30"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("is at revision 0002")
    assert "run `ratchet store migrate`" in said[1]
    assert said[3].endswith("is sound")
    assert said[4] == "forgot 1 runs: old"
    assert main(["migrate", "--to", "0099"]) == 1
    assert "no revision 0099" in capsys.readouterr().err


def test_the_command_reaches_the_store(sqlite_url):
    command = [sys.executable, "-m", "ratchet.cli.main", "store", "check"]
    environment = {STORE_VARIABLE: sqlite_url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()[-8:]) == (0, "is sound")
