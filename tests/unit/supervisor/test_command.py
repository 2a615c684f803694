"""The supervisor's command line: one line for every mistake, and exit codes that scripts can rely on."""

import subprocess
import sys
from pathlib import Path

import pytest


def supervisor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers.supervisor", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("up", "--temporal", "nowhere"), 2, "--temporal 'nowhere' is not HOST:PORT"),
        (("up", "--detach", "--ray", "here:99999"), 2, "--ray 'here:99999' is not HOST:PORT"),
        (("up", "--api-port", "70000"), 2, "70000 is no port"),
        (("up", "--parts", "temporal,rai"), 2, "there are temporal, ray, control, api"),
        (("up", "--max-sessions", "0"), 2, "--max-sessions is '0': give a number from 1 on, or unlimited"),
        (("up", "--standby"), 2, "--standby needs a Temporal server that the others use too"),
        (("up", "--standby", "--temporal", "a:1"), 2, "RATCHET_STORE=postgresql://"),
        (("up", "--take-over-after", "1"), 2, "choose 4 seconds or more"),
        (("up", "--detatch"), 2, "unrecognized arguments: --detatch"),
        (("logs", "apl"), 2, "no log 'apl'"),
        (("up", "--home", "/dev/null"), 1, "choose another RATCHET_HOME"),
    ],
)
def test_mistakes(words: tuple[str, ...], code: int, said: str) -> None:
    answer = supervisor(*words)
    assert answer.returncode == code
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_status_of_nothing(tmp_path: Path) -> None:
    answer = supervisor("status", "--home", str(tmp_path))
    assert answer.returncode == 3
    assert answer.stdout == f"nothing runs from {tmp_path}\nnext: ratchet up\n"


def test_doctor_refuses_a_home_that_is_a_file() -> None:
    answer = supervisor("doctor", "--home", "/dev/null")
    assert answer.returncode == 1
    assert "choose another RATCHET_HOME" in answer.stdout
