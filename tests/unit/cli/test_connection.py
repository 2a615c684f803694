"""Which API a command asks, and as whom."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ratchet.cli.asked import Asked
from ratchet.cli.connection import Connection, resolve
from ratchet.spec.access import Role
from ratchet.spec.home import Home
from ratchet.spec.problems import InvalidSpec
from ratchet.spec.state import RunPhase
from ratchet.store import Tokens

Ratchet = Callable[..., Result]

PROFILES = """
[team]
url = "https://team.example/"
token_env = "TEAM"

[lab]
url = "http://lab.example"
token_file = "{folder}/lab.token"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "profiles.toml").write_text(PROFILES.format(folder=tmp_path))
    (tmp_path / "lab.token").write_text("of-the-lab\n")
    return {"RATCHET_PROFILES": str(tmp_path / "profiles.toml"), "TEAM": "of-the-team"}


@pytest.mark.parametrize(
    ("asked", "variables", "found"),
    [
        (Asked(), {}, Connection(None, None)),
        (Asked(), {"RATCHET_TOKEN": "t"}, Connection(None, "t")),
        (Asked(), {"RATCHET_URL": "http://u", "RATCHET_TOKEN": "t"}, Connection("http://u", "t")),
        (Asked(url="http://f"), {"RATCHET_URL": "http://u"}, Connection("http://f", None)),
        (
            Asked(profile="team"),
            {"RATCHET_URL": "http://u"},
            Connection("https://team.example", "of-the-team"),
        ),
        (Asked(), {"RATCHET_PROFILE": "lab"}, Connection("http://lab.example", "of-the-lab")),
        (Asked(token="f"), {"RATCHET_PROFILE": "lab"}, Connection("http://lab.example", "f")),
    ],
)
def test_flags_come_before_the_environment(
    environment: dict[str, str], asked: Asked, variables: dict[str, str], found: Connection
) -> None:
    assert resolve(asked, environment | variables) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "profile team"),
        ("[team]\n", "team.url"),
        ('[team]\nurl = "ftp://x"\n', "team.url"),
        ('[team]\nurl = "http://x"\ntoken = "secret"\n', "team.token"),
        ('[team]\nurl = "http://x"\ntoken_env = "NOT_SET"\n', "team.token_env"),
        ('[team]\nurl = "http://x"\ntoken_file = "/nowhere"\n', "team.token_file"),
        ("[team", "profiles.toml"),
    ],
)
def test_a_wrong_profile_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "profiles.toml").write_text(text)
    with pytest.raises(InvalidSpec, match=named):
        resolve(Asked(profile="team"), {"RATCHET_PROFILES": str(tmp_path / "profiles.toml")})


def test_the_same_commands_ask_a_remote_api_with_a_token(
    ratchet: Ratchet, api_server: Any, on_record: Any, home: Home, tmp_path: Path
) -> None:
    on_record.run("done", RunPhase.COMPLETED, steps=2)
    _, viewer = Tokens(on_record.store).create("ada", Role.VIEWER, by="test", at=time.time())
    home.state_file.unlink()  # no stack of this machine
    url = f"http://127.0.0.1:{api_server.port}"
    assert "done" in ratchet("--url", url, "--token", viewer, "run", "ls").stdout
    refused = ratchet("--url", url, "--token", viewer, "run", "stop", "done")
    assert (refused.exit_code, "this needs operator" in refused.stderr) == (2, True)
    unknown = ratchet("--url", url, "--token", "ratchet_00000000_x", "run", "ls")
    assert (unknown.exit_code, "not known here" in unknown.stderr) == (2, True)
    away = ratchet("--url", "http://127.0.0.1:1", "run", "ls")
    assert (away.exit_code, "check the address" in away.stderr) == (3, True)
    assert ratchet("run", "ls").exit_code == 3


def test_tokens_are_made_listed_and_revoked(ratchet: Ratchet, api_server: Any) -> None:
    made = ratchet("token", "create", "ada", "--role", "viewer")
    assert made.exit_code == 0, made.stderr
    token = made.stdout.strip()
    assert token.startswith("ratchet_")
    number = token.split("_")[1]
    assert f"{number}  viewer" in ratchet("token", "ls").stdout
    assert ratchet("--token", token, "run", "ls").exit_code == 0
    assert ratchet("token", "revoke", number).exit_code == 0
    assert "revoked" in ratchet("token", "ls").stdout
    assert ratchet("--token", token, "run", "ls").exit_code == 2
    assert ratchet("token", "create", "eve", "--role", "god").exit_code == 2
