"""Lines to actors: calls over a TCP connection of our own, beside Ray.

Ray makes the actors, names them and ends them. The calls of an operation do not go through it: on a small
machine an actor call costs two milliseconds where a line costs a fifth of one, and a line breaks the moment
its actor dies, while Ray notices after seconds. An address and its key are told by a Ray call, which
authenticates; each connection then proves the key (HMAC, multiprocessing.connection).
"""

import functools
import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from ratchet.spec import deadlines
from ratchet.spec.faults import ActorLost, InfraFault, RatchetError, Unavailable
from ratchet.spec.ids import OpId
from ratchet.telemetry import logs, tracing

logger = logging.getLogger(__name__)

BACKLOG = 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an actor answers, and the word that opens it."""

    host: str
    port: int
    key: bytes
    pid: int
    """Of the actor's process, on its host."""


class LineServer:
    """Answers an actor's calls. Methods come in lanes; those of one lane run one at a time, in one thread
    that is always the same (engines keep state in threads: OpenMP pools, CUDA contexts)."""

    def __init__(
        self,
        host: str,
        lanes: Mapping[str, Mapping[str, Callable[..., Any]]],
        at_once: Collection[str] = (),
    ) -> None:
        """`at_once`: lanes whose methods may run at any time, in any thread."""
        self._at_once = at_once
        self._lanes = {
            name: (ThreadPoolExecutor(1, thread_name_prefix=name), dict(methods))
            for name, methods in lanes.items()
        }
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        port: int = self._socket.getsockname()[1]
        self.endpoint = Endpoint(host, port, secrets.token_bytes(16), os.getpid())
        threading.Thread(target=self._accept, name="lines", daemon=True).start()

    def _accept(self) -> None:
        while True:
            end, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        """One connection, in a thread of its own: its caller waits for every answer. When the caller is gone,
        what it had asked for is carried out all the same, and its receipt is what a next caller finds."""
        try:
            connection = _greeted(
                end, self.endpoint.key, deadlines.ENGINE_SILENT, deliver_challenge, answer_challenge
            )
        except (AuthenticationError, EOFError, OSError) as error:
            logger.warning("a connection was refused: %s", error)
            return
        with suppress(EOFError, OSError), connection:
            while True:
                lane, method, arguments, *trace = connection.recv()
                connection.send(self._answer(lane, method, arguments, trace[0] if trace else None))

    def _answer(
        self, lane: str, method: str, arguments: tuple[Any, ...], trace: tracing.Carrier | None
    ) -> tuple[Any, RatchetError | None]:
        executor, methods = self._lanes[lane]
        work = functools.partial(methods[method], *arguments)
        try:
            if lane in self._at_once:
                return _told(work, method, arguments, trace), None
            return executor.submit(_told, work, method, arguments, trace).result(), None
        except RatchetError as error:
            return None, error
        except MemoryError as error:
            return None, InfraFault(f"out of memory in {method}: {error}")
        except Exception as error:
            logger.exception("%s failed", method)
            if _is_out_of_memory(error):
                return None, InfraFault(f"out of memory in {method}: {error}")
            return None, RatchetError(f"{type(error).__name__}: {error}")


class Line:
    """One connection to a lane of an actor; one call at a time. Blocking."""

    def __init__(
        self, endpoint: Endpoint, role: str, lane: str, *, lost: type[RatchetError] = ActorLost
    ) -> None:
        self._endpoint = endpoint
        self._role = role
        self._lane = lane
        self._loss = lost
        self._connection: Any = None
        self._lock = threading.Lock()
        self._due: list[tuple[str, float]] = []
        """Calls posted, whose answers nobody has looked at yet: (method, deadline)."""
        self._cut: str | None = None

    def call(
        self, method: str, *arguments: Any, deadline: float, trace: tracing.Carrier | None = None
    ) -> Any:
        """The method's result. Raises its fault, `lost` once the actor is gone, or Unavailable after
        `deadline` seconds; the call may then still be under way. `trace`: goes along, if there is one."""
        with self._lock:
            self._send(method, arguments, deadline, trace)
            due, self._due = self._due, []
            for posted in due:
                self._receive(*posted)
            return self._receive(method, deadline)

    def post(self, method: str, *arguments: Any, deadline: float) -> None:
        """Call, and let the next call look at the answer: if it is a fault, that one raises it."""
        with self._lock:
            self._send(method, arguments, deadline)
            self._due.append((method, deadline))

    def cut(self, reason: str) -> None:
        """End the line for good: a call under way, and every later one, raises `lost` for that reason."""
        self._cut = reason
        if (connection := self._connection) is not None:
            with suppress(OSError), _socket(connection) as end:
                end.shutdown(socket.SHUT_RDWR)

    def _send(
        self,
        method: str,
        arguments: tuple[Any, ...],
        deadline: float,
        trace: tracing.Carrier | None = None,
    ) -> None:
        if self._cut:
            raise self._lost(self._cut)
        try:
            if self._connection is None:
                self._connection = connect(self._endpoint, min(deadline, deadlines.ENGINE_SILENT))
            self._connection.send((self._lane, method, arguments, *((trace,) if trace else ())))
        except (AuthenticationError, EOFError, OSError) as error:
            raise self._lost(reason(error)) from error

    def _receive(self, method: str, deadline: float) -> Any:
        try:
            if not self._connection.poll(deadline):
                self._close()  # a late answer must not be taken for the next call's
                raise Unavailable(
                    f"the {self._role} did not answer {method} within {deadline:.0f} s", role=self._role
                )
            result, fault = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost(reason(error)) from error
        if fault is not None:
            fault.role = fault.role or self._role
            raise fault
        return result

    def _lost(self, reason: str) -> RatchetError:
        self._close()
        return self._loss(f"the {self._role} is gone: {self._cut or reason}", role=self._role)

    def _close(self) -> None:
        self._due.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _told(
    work: Callable[[], Any], method: str, arguments: tuple[Any, ...], trace: tracing.Carrier | None
) -> Any:
    """Do it, in a lane's thread. If it is for an operation, log lines and the span of a trace say so."""
    op = getattr(arguments[0], "op", None) if arguments else None
    if not isinstance(op, OpId):
        with tracing.span(method, trace):
            return work()
    with logs.about_operation(op), tracing.operation("actor", op, trace):
        return work()


def connect(endpoint: Endpoint, within: float) -> Any:
    """A multiprocessing connection to an actor, greeted. Raises AuthenticationError, EOFError, OSError."""
    end = socket.create_connection((endpoint.host, endpoint.port), timeout=within)
    return _greeted(end, endpoint.key, within, answer_challenge, deliver_challenge)


def _greeted(end: socket.socket, key: bytes, within: float, *handshake: Callable[[Any, bytes], None]) -> Any:
    """A connection whose other end has the key. multiprocessing's own Client and Listener do the same, but
    would wait for ever for the greeting of a process that is frozen."""
    end.settimeout(None)  # the kernel bounds reads, not Python: the descriptor is handed over
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(within))
    # Nor is anybody to wait for ever who sends much to a process that does not read.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _seconds(deadlines.RAY_CALL))
    # A pickle longer than 16 KiB goes out in two writes, and TCP would hold the second one back until the
    # first is acknowledged: 40 ms.
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection: Any = Connection(end.detach())
    try:
        for part in handshake:
            part(connection, key)
        with _socket(connection) as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(0))
    except BaseException:
        connection.close()
        raise
    return connection


def _seconds(count: float) -> bytes:
    """A struct timeval."""
    return struct.pack("ll", int(count), int(count % 1 * 1e6))


def _socket(connection: Any) -> socket.socket:
    """The socket behind a connection; closing it leaves the connection open."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def _is_out_of_memory(error: Exception) -> bool:
    """torch's own errors for it, without importing torch: of the GPU's allocator, and of the CPU's."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def reason(error: Exception) -> str:
    """Why a connection ended, for people."""
    return "its connection ended" if isinstance(error, EOFError) else str(error) or type(error).__name__
