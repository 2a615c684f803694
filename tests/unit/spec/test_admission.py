"""How many sessions there may be: what an installation is told, and what it remembers."""

from pathlib import Path

import pytest

from ratchet.spec.admission import MAX_SESSIONS_VARIABLE, Limit
from ratchet.spec.faults import SpecError
from ratchet.spec.home import Home


def test_the_environment_comes_before_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    assert Limit.of(home) == Limit(max_sessions=None)
    home.max_sessions_file.write_text(str(Limit(max_sessions=4)))
    assert Limit.of(home) == Limit(max_sessions=4)
    monkeypatch.setenv(MAX_SESSIONS_VARIABLE, "unlimited")
    assert Limit.of(home) == Limit(max_sessions=None)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_what_is_no_number_of_sessions_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"--max-sessions is .*: give a number from 1 on, or unlimited"):
        Limit.parse(text, "--max-sessions")
