"""Every benchmark ends with one JSON line, whatever else it prints."""

import json

import pytest

from benchmarks.report import Report, arguments, percentile

RESULT = {"benchmark": "unit", "overhead_ms_p50": 41.25, "parts": {"refit": 3.0}, "trl": None}


@pytest.mark.parametrize("json_only", [False, True])
def test_the_last_line_is_the_result(json_only: bool, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(json_only)
    report.progress("at work …")
    report.publish("Overhead", ["", "p50"], [["a step", "41.2"], ["  refit", "3.0"]], RESULT)
    out, err = capsys.readouterr()
    *table, line = out.splitlines()
    assert json.loads(line).items() >= RESULT.items()
    assert bool(table) is not json_only
    assert bool(err) is not json_only


def test_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    Report(False).publish("T", ["", "p50"], [["a step", "41.2"], ["refit", "3.0"]], {})
    _, *table, _ = capsys.readouterr().out.splitlines()
    assert table == ["           p50", "  a step  41.2", "  refit    3.0"]


def test_a_number_that_is_not_one_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Report(True).publish("T", [""], [], {"p50": float("nan")})


def test_both_switches_are_there() -> None:
    options = arguments("unit").parse_args(["--quick", "--json-only"])
    assert (options.quick, options.json_only) == (True, True)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)])
def test_percentiles_lie_between_values(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == pytest.approx(expected)
    assert percentile([7.0], share) == 7.0
