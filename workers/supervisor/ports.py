"""Free ports for a stack: remembered from one start to the next, so that links stay valid."""

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.spec.faults import Conflict, Unavailable
from ratchet.spec.home import Home
from workers.supervisor.files import write_atomically

# Below the range from which the kernel gives out ports to connections (32768 and up).
FIRST, LAST, SLOT = 20000, 32639, 128
RAY_PORTS = 110
"""Ray takes so many in a row: seven for its servers, and one for every worker process."""


class Ports(BaseModel):
    """The ports of a stack."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    temporal: int
    temporal_ui: int
    temporal_http: int
    temporal_metrics: int
    api: int
    ray: int
    """The first of RAY_PORTS."""

    @classmethod
    def choose(cls, home: Home, asked: dict[str, int], needed: set[str]) -> Self:
        """Asked-for ports, else the remembered ones that are free, else free ones.

        `asked` and `needed` hold names of fields; what is not needed is not looked at. Raises Conflict if a
        port that was asked for is in use, naming who has it.
        """
        for name, port in asked.items():
            if name in needed and not is_free(port):
                flag = "--" + name.removeprefix("temporal_").replace("_", "-") + "-port"
                raise Conflict(
                    f"port {port} ({flag}) is in use by {owner(port)}: stop that, or choose another port"
                )
        remembered = cls.remembered(home)
        chosen = dict(asked)
        fresh = _free_in_own_slots(home, taken=set(asked.values()))
        for name in cls.model_fields:
            before = remembered.get(name)
            if name in chosen:
                continue
            count = RAY_PORTS if name == "ray" else 1
            if before and before not in asked.values() and (name not in needed or are_free(before, count)):
                chosen[name] = before
            else:
                chosen[name] = _free_block(home) if name == "ray" else next(fresh)
        ports = cls(**chosen)
        write_atomically(_file(home), ports.model_dump_json(indent=1))
        return ports

    @classmethod
    def remembered(cls, home: Home) -> dict[str, int]:
        """Those of the last start, by name; empty if there was none."""
        try:
            return cls.model_validate_json(_file(home).read_text()).model_dump()
        except (OSError, ValidationError):
            return {}  # only a convenience: links of an earlier start change


def _file(home: Home) -> Path:
    return home.root / "ports.json"


def _slots(home: Home) -> Iterator[int]:
    """First ports of 128 in a row, beginning at a place of this home's own: two stacks that start at the same
    moment do not want the same ones."""
    count = (LAST - FIRST + 1) // SLOT
    own = int(home.tag, 16) % count
    return (FIRST + (own + i) % count * SLOT for i in range(count))


def _free_block(home: Home) -> int:
    for slot in _slots(home):
        if are_free(slot, RAY_PORTS):
            return slot
    raise Unavailable(
        f"no {RAY_PORTS} free ports in a row between {FIRST} and {LAST} for Ray: stop what uses them"
    )


def _free_in_own_slots(home: Home, taken: set[int]) -> Iterator[int]:
    for slot in _slots(home):
        for port in range(slot + RAY_PORTS, slot + SLOT):
            if port not in taken and is_free(port):
                yield port
    raise Unavailable(f"no free port between {FIRST} and {LAST}: stop what uses them")


def are_free(first: int, count: int) -> bool:
    return all(is_free(port) for port in range(first, first + count))


def is_free(port: int) -> bool:
    """Whether a server could listen on it, on loopback and on every address."""
    for address in ("127.0.0.1", ""):
        with socket.socket() as probe:
            # As servers do: connections of a previous owner that linger in TIME_WAIT do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return False
                raise
    return True


def owner(port: int) -> str:
    """Who listens on it, in words."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another process"
