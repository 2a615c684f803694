"""Where Prometheus finds the metrics of every process of a stack: files in the form of its file_sd_configs.

Each process that has metrics listens on a loopback port of its own, the one it had before if that is free,
and leaves a file in `prometheus/` of the state folder. Point file_sd_configs at `prometheus/*.json` there.
"""

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from ratchet.spec.home import Home

logger = logging.getLogger(__name__)

HOST_VARIABLE = "RATCHET_METRICS"
"""`off`, or the address to listen on: in a container 0.0.0.0, and then it is found by the host's name."""
OFF = "off"
TRIES = 5

_ANYWHERE = ("0.0.0.0", "[::]")


def offer(home: Home, process: str, listen: Callable[[str], None], **labels: str) -> None:
    """Have `listen` serve metrics at an address, and say where. It raises OSError, RuntimeError or ValueError
    if the address cannot be used. A process goes on without metrics rather than not at all."""
    for address in _addresses(home, process):
        try:
            listen(address)
        except (OSError, RuntimeError, ValueError) as error:
            logger.warning("no metrics of %s at %s: %s", process, address, error)
            continue
        with contextlib.suppress(OSError):  # a full disk
            announce(home, process, _seen_from_outside(address), **labels)
        return


def announce(home: Home, process: str, address: str, **labels: str) -> None:
    """Say that `address` (host:port) serves `/metrics` of `process`. Raises OSError."""
    file = _file(home, process)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps([{"targets": [address], "labels": {"process": process, **labels}}]))
    draft.replace(file)


def withdraw(home: Home, process: str) -> None:
    """That process will not come back."""
    _file(home, process).unlink(missing_ok=True)


def _file(home: Home, process: str) -> Path:
    return home.prometheus / f"{process}.json"


def _addresses(home: Home, process: str) -> Iterator[str]:
    """Where to listen: the port of the last time, then free ones."""
    host = os.environ.get(HOST_VARIABLE) or "127.0.0.1"
    if host == OFF:
        return
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        yield f"{host}:{json.loads(_file(home, process).read_text())[0]['targets'][0].rpartition(':')[2]}"
    for _ in range(TRIES):
        with socket.create_server((host.strip("[]"), 0), family=_family(host)) as probe:
            port = probe.getsockname()[1]
        yield f"{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _seen_from_outside(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in _ANYWHERE else address
