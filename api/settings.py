"""How an API is set up: whom it answers, what specs may name, and how much is let in."""

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
MAX_BODY = 1 << 20
"""Bytes of a request: a spec is a few thousand."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    wide: bool = False
    """It listens beyond loopback: everybody needs a token, whoever they are."""
    allowed_roots: tuple[Path, ...] | None = None
    """Folders whose files a spec may name; None: any. What runs on loopback is the person's own machine, and
    wherever it listens wider nothing is allowed unless it is said."""
    max_body: int = MAX_BODY
    launches_at_once: int = 300
    """Launches that one caller may ask for in a burst; what repeats a key does not count."""
    launches_per_second: float = 5.0
    """At which rate the burst comes back."""

    @classmethod
    def listening_on(cls, host: str, roots: Iterable[str]) -> "ApiSettings":
        wide = not is_loopback(host)
        named = tuple(Path(root).expanduser().resolve() for root in roots)
        return cls(wide=wide, allowed_roots=named if named or wide else None)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def roots_of_environment(variable: str) -> list[str]:
    """Folders that an environment variable lists, like PATH does."""
    return [root for root in os.environ.get(variable, "").split(os.pathsep) if root]
