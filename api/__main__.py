"""`python -m api`: serve the API on loopback until SIGTERM."""

import argparse
import ipaddress
import logging
import os
import socket
import sys

import uvicorn

from api.app import create_app
from ratchet.spec import deadlines
from ratchet.spec.home import Home

DEFAULT_PORT = 8650


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m api", description="Ratchet's REST API.")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s")
    arguments = parser.parse_args()
    if not _is_loopback(arguments.host):
        parser.error(
            f"--host {arguments.host}: the API knows no users yet, so it serves loopback only: 127.0.0.1"
        )
    try:
        listener = socket.create_server((arguments.host, arguments.port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        parser.error(f"{arguments.host}:{arguments.port} cannot be used ({reason}): choose another --port")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(Home()),
            log_config=None,
            access_log=False,  # `watch` asks twice a second
            timeout_graceful_shutdown=int(deadlines.STOP_GRACE / 2),
        )
    )
    with listener:
        server.run(sockets=[listener])
    return 0 if server.started else 1


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
