"""An environment whose answers are checked by a server elsewhere, and that server."""

import asyncio
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from ratchet.environments.arithmetic import ArithmeticEnvironment
from ratchet.environments.protocol import Problem
from ratchet.spec.faults import DataFault


class RemoteChecks(ArithmeticEnvironment):
    """Option `url`: of the server, which has to answer before a response counts."""

    def __init__(self, options: Mapping[str, object], seed: int) -> None:
        super().__init__({key: value for key, value in options.items() if key != "url"}, seed)
        self._url = str(options["url"])

    async def score(self, problem: Problem, text: str) -> Any:  # what the protocol's may be
        def ask() -> bytes:
            with urllib.request.urlopen(f"{self._url}/{problem.id}", timeout=10.0) as answer:
                return answer.read()

        if await asyncio.to_thread(ask) == b"no":
            raise DataFault(f"{problem.id} cannot be checked")
        return super().score(problem, text)


class CheckServer:
    """Answers `yes` to all; `no` or nothing at all to some of the problems, by the order they are first asked
    about in."""

    def __init__(
        self, *, refused: frozenset[int] = frozenset(), silent: frozenset[int] = frozenset()
    ) -> None:
        self.asked: list[str] = []
        """The problems, in the order they were first asked about."""
        self.turned_away = 0
        self.away = False
        """Whether every connection is dropped at once."""
        checks, ending = self, Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if checks.away:
                    checks.turned_away += 1
                    return
                answer = checks._answer(self.path.strip("/"), refused, silent)
                if answer is None:
                    ending.wait(60.0)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._ending, self._lock = ending, Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, problem: str, refused: frozenset[int], silent: frozenset[int]) -> bytes | None:
        with self._lock:
            if problem not in self.asked:
                self.asked.append(problem)
            index = self.asked.index(problem)
        return None if index in silent else b"no" if index in refused else b"yes"
