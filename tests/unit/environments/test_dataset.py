"""A data set: every pass trains every row once, in an order that only the seed and the pass decide."""

import json
from pathlib import Path

import pytest

from ratchet.environments.registry import create_environment
from ratchet.spec.faults import SpecError
from ratchet.spec.run_spec import EnvironmentSpec


def _file(folder: Path, rows: list[dict[str, object]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _environment(path: str, seed: int = 0, **options: object):
    return create_environment(EnvironmentSpec(name="dataset", options={"path": path, **options}), seed)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return _file(tmp_path, [{"prompt": f"{i} + 1 =", "answer": i + 1} for i in range(10)])


def test_every_pass_trains_every_row_once_and_no_held_out_one(rows: str) -> None:
    environment = _environment(rows, num_heldout=2)
    orders = [[environment.train_problem(8 * epoch + i).id for i in range(8)] for epoch in range(3)]
    assert all(sorted(order) == [f"row-{i}" for i in range(1, 9)] for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [environment.heldout_problem(i).id for i in range(2)] == ["row-9", "row-10"]


def test_the_order_is_the_seeds_whoever_asks_and_from_where(rows: str) -> None:
    positions = [3, 27, 12, 0, 19]
    first, second, other = _environment(rows), _environment(rows), _environment(rows, seed=1)
    expected = [first.train_problem(position).id for position in range(30)]
    assert [second.train_problem(position).id for position in positions] == [expected[p] for p in positions]
    assert [other.train_problem(position).id for position in range(30)] != expected


def test_without_shuffling_the_order_is_the_files(rows: str) -> None:
    environment = _environment(rows, shuffle=False)
    assert [environment.train_problem(p).id for p in range(12)] == [f"row-{i}" for i in (*range(1, 11), 1, 2)]


@pytest.mark.parametrize(
    ("match", "text", "correct"),
    [
        ("exact", " 1234 ", True),
        ("exact", "1234\nbecause", False),
        ("first_line", "1234\n9", True),
        ("first_line", "it is 1234", False),
        ("last_number", "12 and then 1,234.", True),
        ("last_number", "1234 or 5", False),
        ("last_number", "none", False),
    ],
)
def test_a_response_is_right_by_the_chosen_rule(tmp_path: Path, match: str, text: str, correct: bool) -> None:
    environment = _environment(_file(tmp_path, [{"prompt": "p", "answer": "1234"}]), match=match)
    score = environment.score(environment.train_problem(0), text)
    assert (score.correct, score.reward) == (correct, float(correct))


def test_what_is_wrong_with_the_file_is_said_with_its_line(tmp_path: Path, rows: str) -> None:
    with pytest.raises(SpecError, match=r"environment.options.path: .*No such file"):
        _environment(str(tmp_path / "absent.jsonl"))
    with pytest.raises(SpecError, match=r"line 2 of .*KeyError: 'answer'"):
        _environment(_file(tmp_path, [{"prompt": "a", "answer": 1}, {"prompt": "b"}]))
    with pytest.raises(SpecError, match="leaves none to train on"):
        _environment(_file(tmp_path, [{"prompt": "a", "answer": 1}]), num_heldout=1)
    with pytest.raises(SpecError, match="not the file the run began with"):
        _environment(_file(tmp_path, [{"prompt": "a", "answer": 1}]), sha256="0" * 64)
