"""A real browser in front of a real API: for tests of the dashboard, and for pictures of it."""

import os
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, async_playwright

from api.__main__ import ApiServer
from api.app import create_app
from api.settings import ApiSettings
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home

BROWSER_VARIABLE = "RATCHET_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",  # CI is root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_READY_S = 30.0


def chromium() -> Path:
    """The browser: named by the variable, or on PATH. Raises Unavailable."""
    chosen = os.environ.get(BROWSER_VARIABLE)
    found = chosen or next(filter(None, map(shutil.which, NAMES)), None)
    if not found or not os.access(found, os.X_OK):
        raise Unavailable(
            f"{chosen or 'no Chromium'} can be run: apt-get install chromium, or name one with "
            f"{BROWSER_VARIABLE}"
        )
    return Path(found)


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A browser without a window. Raises Unavailable where there is none."""
    program = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(QUIET))
        try:
            yield browser
        finally:
            await browser.close()


class ServedApi:
    """An API on a port of its own, in a thread. It can go away, and come back at the same address."""

    def __init__(self, home: Home, settings: ApiSettings | None = None) -> None:
        self._home, self._settings = home, settings
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port = int(taken.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def app(self) -> FastAPI:
        assert self._server is not None
        app = self._server.config.app
        assert isinstance(app, FastAPI)
        return app

    def start(self) -> None:
        app = create_app(self._home, self._settings)
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=self._port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = ApiServer(config, app)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        give_up = time.monotonic() + _READY_S
        while not self._server.started:
            if time.monotonic() > give_up or not self._thread.is_alive():
                raise Unavailable(f"the API did not come up at {self.url}")
            time.sleep(0.01)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_READY_S)


@contextmanager
def serving(home: Home, settings: ApiSettings | None = None) -> Iterator[ServedApi]:
    api = ServedApi(home, settings)
    api.start()
    try:
        yield api
    finally:
        api.stop()
