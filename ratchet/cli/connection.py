"""Which API is meant, and who asks: by flag, environment, profile, or else this machine's own stack.

Profiles are tables of a TOML file. Tokens are never in it, only where they are:

    [team]
    url = "https://ratchet.example.org"
    token_file = "~/.config/ratchet/team.token"   # or: token_env = "TEAM_TOKEN"
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.cli.asked import ASKED, Asked
from ratchet.spec.problems import InvalidSpec, SpecProblem

URL_VARIABLE = "RATCHET_URL"
TOKEN_VARIABLE = "RATCHET_TOKEN"
PROFILE_VARIABLE = "RATCHET_PROFILE"
FILE_VARIABLE = "RATCHET_PROFILES"
_KEYS = frozenset({"url", "token_file", "token_env"})


@dataclass(frozen=True, slots=True)
class Connection:
    url: str | None
    """None: the stack of this machine, wherever its API listens at the moment."""
    token: str | None


def current_connection() -> Connection:
    """As the command line and the environment say. Raises InvalidSpec."""
    return resolve(ASKED.get(), os.environ)


def resolve(asked: Asked, environment: Mapping[str, str]) -> Connection:
    """Flags come before the environment, and an address before a profile. Raises InvalidSpec."""
    token = asked.token or environment.get(TOKEN_VARIABLE) or None
    for source in (asked, _of_environment(environment)):
        if source.url:
            return Connection(_checked("url", source.url), token)
        if source.profile:
            profile = _profile(source.profile, environment)
            return Connection(profile.url, asked.token or profile.token or token)
    return Connection(None, token)


def _of_environment(environment: Mapping[str, str]) -> Asked:
    return Asked(url=environment.get(URL_VARIABLE), profile=environment.get(PROFILE_VARIABLE))


def _profile(name: str, environment: Mapping[str, str]) -> Connection:
    path = _file(environment)
    try:
        profiles = tomllib.loads(path.read_text())
    except OSError as error:
        raise _wrong(str(path), f"cannot be read ({error.strerror})", "a TOML file of profiles") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"is no TOML ({error})", "a TOML file of profiles") from None
    found = profiles.get(name)
    if not isinstance(found, dict):
        raise _wrong(
            f"profile {name}", f"not in {path}", ", ".join(profiles) or "none: the file has no table"
        )
    for key, value in found.items():
        if key not in _KEYS or not isinstance(value, str):
            raise _wrong(f"{name}.{key}", repr(value), f"texts of {', '.join(sorted(_KEYS))}")
    if "url" not in found:
        raise _wrong(f"{name}.url", "missing", "an address, like https://ratchet.example.org")
    return Connection(_checked(f"{name}.url", found["url"]), _token(name, found, environment))


def _token(name: str, profile: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    if variable := profile.get("token_env"):
        if not environment.get(variable):
            raise _wrong(f"{name}.token_env", f"{variable} is not set", "a variable that holds the token")
        return environment[variable]
    if file := profile.get("token_file"):
        try:
            return Path(file).expanduser().read_text().strip()
        except OSError as error:
            raise _wrong(f"{name}.token_file", f"{file}: {error.strerror}", "a file with the token") from None
    return None


def _file(environment: Mapping[str, str]) -> Path:
    if named := environment.get(FILE_VARIABLE):
        return Path(named).expanduser()
    config = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "ratchet" / "profiles.toml"


def _checked(key: str, url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise _wrong(key, repr(url), "an address, like https://ratchet.example.org")
    return url.rstrip("/")


def _wrong(key: str, found: str, allowed: str) -> InvalidSpec:
    return InvalidSpec([SpecProblem(key=key, found=found, allowed=allowed)])
