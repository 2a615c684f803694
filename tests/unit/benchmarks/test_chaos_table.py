"""The table says what the harness owes, and its rows read as they are written."""

import signal

import pytest

from benchmarks.chaos.table import Victim, chosen, gaps, kills, load_table, parse_row

TABLE = load_table()
MOMENTS = TABLE.moments


def test_every_victim_and_every_moment_has_its_rows() -> None:
    assert gaps(TABLE) == []


def test_quick_rows_are_rows_of_the_whole_table() -> None:
    assert TABLE.rows[: len(TABLE.quick)] == TABLE.quick
    assert len({str(row) for row in TABLE.rows}) == len(TABLE.rows)


def test_no_row_counts_two_moments_at_one_failpoint() -> None:
    for row in (*TABLE.rows, TABLE.negative_control):
        points = [MOMENTS[strike.moment].at for strike in row.strikes]
        named = [point.failpoint for point in points if point]
        assert len(set(named)) == len(named), row


def test_runs_are_named_so_that_they_can_be_launched() -> None:
    for row in TABLE.rows:
        name = f"99-{row.slug}"
        assert len(name) <= 60
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert not name.endswith("-")


def test_a_row_reads_as_it_is_written() -> None:
    text = "kill trainer at backward, stop head at recovery-opened, store-locked at shutdown"
    row = parse_row(text, MOMENTS)
    assert str(row) == text
    assert kills([row]) == 3
    assert [strike.victim for strike in row.strikes] == [Victim.TRAINER, Victim.HEAD, Victim.STORE_LOCKED]
    assert row.strikes[1].signal is signal.SIGSTOP
    assert row.strikes[1].label == "head, stopped"


@pytest.mark.parametrize(
    "line",
    [
        "kill trainer",
        "kill train at backward",
        "kill trainer at noon",
        "trainer at backward",
        "kill store-locked at shutdown",
    ],
)
def test_a_row_that_makes_no_sense_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=line.split()[-1]):
        parse_row(line, MOMENTS)


def test_settings_of_a_moment_come_after_those_of_every_run() -> None:
    row = parse_row("kill temporal at continue-as-new", MOMENTS)
    assert TABLE.settings_of(row) == [*TABLE.settings, "runtime.continue_as_new_every_steps=1"]


def test_rows_can_be_chosen_by_victim_and_by_name() -> None:
    rows = [parse_row(line, MOMENTS) for line in ("kill api at backward", "kill head at shutdown")]
    assert chosen(rows, "head", None) == rows[1:]
    assert chosen(rows, None, "backward") == rows[:1]
    assert chosen(rows, "head", "backward") == []
