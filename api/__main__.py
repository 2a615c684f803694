"""`python -m api`: serve the API until SIGTERM, on loopback or, to those who hold tokens, beyond it."""

import argparse
import os
import socket
import sys
import time

import uvicorn
from fastapi import FastAPI

from api import telemetry
from api.app import create_app
from api.settings import ApiSettings, roots_of_environment
from ratchet.spec import deadlines
from ratchet.spec.access import Role
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from ratchet.store import Store, Tokens

DEFAULT_PORT = 8650
ROOTS_VARIABLE = "RATCHET_ALLOWED_ROOTS"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m api", description="Ratchet's REST API.")
    parser.add_argument(
        "--host", default="127.0.0.1", help="beyond loopback, tokens are needed (%(default)s)"
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s")
    parser.add_argument(
        "--allow-root",
        action="append",
        metavar="FOLDER",
        help=f"specs may name files below it, and none elsewhere; again for more, or {ROOTS_VARIABLE}",
    )
    parser.add_argument(
        "--first-token", metavar="NAME", help="print an admin's token, straight from the store, and end"
    )
    arguments = parser.parse_args()
    try:
        if arguments.first_token:
            return _first_token(Home(), arguments.first_token)
        roots = arguments.allow_root or roots_of_environment(ROOTS_VARIABLE)
        settings = ApiSettings.listening_on(arguments.host, roots)
        if settings.wide and not _has_tokens(Home()):
            parser.error(
                f"--host {arguments.host}: nobody holds a token yet, and beyond loopback everybody "
                "needs one: make the first by `ratchet token create NAME --role admin --offline`"
            )
    except RatchetError as error:
        parser.error(str(error))
    try:
        listener = socket.create_server((arguments.host, arguments.port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        parser.error(f"{arguments.host}:{arguments.port} cannot be used ({reason}): choose another --port")
    try:
        telemetry.begin(Home())
    except RatchetError as error:
        parser.error(str(error))
    app = create_app(Home(), settings)
    server = ApiServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # `watch` asks twice a second
            timeout_graceful_shutdown=int(deadlines.STOP_GRACE / 2),
        ),
        app,
    )
    with listener:
        server.run(sockets=[listener])
    return 0 if server.started else 1


class ApiServer(uvicorn.Server):
    """Ends the streams of events first: they would hold up a shutdown."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.state.services.feed.close()
        await super().shutdown(sockets)


def _has_tokens(home: Home) -> bool:
    store = Store(home.store_url)
    store.migrate()
    try:
        return Tokens(store).any()
    finally:
        store.close()


def _first_token(home: Home, name: str) -> int:
    store = Store(home.store_url)
    store.migrate()
    _, text = Tokens(store).create(name, Role.ADMIN, by="this machine", at=time.time())
    store.close()
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
