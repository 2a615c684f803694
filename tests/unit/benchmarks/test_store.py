"""The benchmark of the store, small: its rows are sound, and no question reads a table whole."""

import pytest

from benchmarks.report import Report
from benchmarks.store import FORK, LIVES, LONGEST, Size, database, fill, measure
from ratchet.store import Lineage, Store
from ratchet.store.engine import open_engine
from ratchet.store.maintenance import check

SMALL = Size(runs=60, steps=16_000, longest=1_000, asked=3)


@pytest.mark.parametrize("kind", ["sqlite", None])
def test_no_question_reads_a_table_whole(kind):
    with database(kind) as url:
        answer = measure(url, SMALL, Report(json_only=True))
    # A table of a page or two is read whole, and rightly so: only steps are many at this size.
    assert "steps" not in answer["full_scans"]
    assert kind is None or answer["full_scans"] == []
    assert all(answer[f"{name}_ms_p95"] > 0 for name in ("list", "show", "lineage"))
    assert answer["lineage_statements"] == 1


def test_its_rows_are_those_of_a_store(tmp_path):
    size = Size(runs=5, steps=300, longest=100, asked=1)
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    store.migrate()
    engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}", 5.0)
    fill(store, engine, size)
    assert check(engine) == []
    assert [step.step for step in store.steps_on_path(LONGEST)] == list(range(1, 101))
    assert len(Lineage(store).up(FORK, 1, 140).steps) == 140
    assert {life.incarnation for life in Lineage(store).up(LONGEST, LIVES, 100).lives} == set(range(1, 11))
    store.close()
    engine.dispose()
