"""Mooncake's master: it knows where every object is, and dies with the process that started it."""

import ctypes
import functools
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError

MASTER = "mooncake-master"
CLIENT_TTL = 5
"""Seconds after which a client that is silent counts as dead, and its memory as gone."""
_PR_SET_PDEATHSIG = 1


def start_master(processes: dict[str, subprocess.Popen[bytes]], host: str) -> int:
    """Its port. Raises SpecError if it is not installed, DataPlaneUnavailable if it does not come up."""
    beside = Path(sys.executable).parent / "mooncake_master"
    program = str(beside) if beside.exists() else shutil.which("mooncake_master")
    if program is None:
        raise SpecError(
            "data_plane.backend mooncake_cpu needs Mooncake: pip install 'ratchet[mooncake]' (and of the "
            "system libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1), or choose simple"
        )
    port, metrics = _free_port(host), _free_port(host)
    processes[MASTER] = subprocess.Popen(
        [
            program,
            f"-rpc_port={port}",
            f"-metrics_port={metrics}",
            f"-metrics_host={host}",
            "-enable_metric_reporting=false",
            f"-client_ttl={CLIENT_TTL}",
        ],
        preexec_fn=functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _await_port(processes[MASTER], host, port)
    return port


def _await_port(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    end = time.monotonic() + deadlines.DATA_PLANE_START
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.05)
    raise DataPlaneUnavailable(f"mooncake_master does not come up (exit {process.poll()})", role="data-plane")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
