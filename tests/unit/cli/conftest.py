"""The real API on a real port, over the test's own store; Temporal is away."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from api.app import create_app
from ratchet.cli.main import app
from ratchet.spec.home import Home
from ratchet.spec.stack import StackState


class ApiServer:
    """Starts and stops, always on the same port."""

    def __init__(self, home: Home) -> None:
        self._home = home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        config = uvicorn.Config(create_app(self._home), log_config=None, timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        # The socket listens already: a request that comes early waits in its queue.
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(timeout=10)
        assert not self._thread.is_alive(), "the API did not stop"
        self._server = self._thread = None


@pytest.fixture
def api_server(home: Home) -> Iterator[ApiServer]:
    server = ApiServer(home)
    stack = StackState(
        supervisor_pid=1,
        temporal_address="127.0.0.1:1",
        namespace="ratchet",
        temporal_ui="http://127.0.0.1:8233",
        api_url=f"http://127.0.0.1:{server.port}",
    )
    home.root.mkdir(exist_ok=True)
    home.state_file.write_text(stack.model_dump_json())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ratchet(home: Home) -> Callable[..., Result]:
    """Run a command line, as a script would."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, words, env={"RATCHET_HOME": str(home.root), "NO_COLOR": "1"})

    return run
