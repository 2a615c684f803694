"""The session worker's side of its host: starts it, pings it, replaces it, and speaks through it."""

import asyncio
import logging
import socket
import subprocess
import sys
from typing import Any

from ratchet.sessions.wire import WireClient
from ratchet.spec import deadlines
from ratchet.spec.faults import DriverLost, RatchetError, Unavailable
from ratchet.spec.ids import OpId
from ratchet.spec.operations import AnyArgs, OpAnswer, OpState
from ratchet.telemetry import tracing
from workers.conductor_wire import ConductorWire

logger = logging.getLogger(__name__)

RESTART_PAUSE = 0.2
"""Between a host's end and the next one's start: a host that cannot start must not spin."""


class HostProcess:
    """An OperationsClient that survives its host: while there is none, calls are DriverLost."""

    def __init__(self, run: str, session: int) -> None:
        self._command = [
            sys.executable,
            "-m",
            "workers.session_host",
            "--run",
            run,
            "--session",
            str(session),
        ]
        self._conductor: ConductorWire | None = None
        self._up = asyncio.Event()
        self.pid: int | None = None

    # --- OperationsClient

    async def submit(self, args: AnyArgs, wait: float) -> OpAnswer:
        params: dict[str, Any] = {"args": args.model_dump(mode="json"), "wait": wait}
        if trace := tracing.carrier():
            params["trace"] = trace
        return await self._ask("submit", params, wait + deadlines.HOST_CALL) or _starting(args.op)

    async def poll(self, op: OpId, wait: float) -> OpAnswer:
        params = {"op": str(op), "wait": wait}
        return await self._ask("poll", params, wait + deadlines.HOST_CALL) or _starting(op)

    async def cancel(self, op: OpId) -> OpAnswer:
        answer = await self._ask("cancel", {"op": str(op)}, deadlines.CANCEL)
        if answer is None:
            raise Unavailable("the session's actors start: nobody can be told yet", role="conductor")
        return answer

    async def available(self, deadline: float) -> None:
        try:
            await asyncio.wait_for(self._up.wait(), deadline)
        except TimeoutError:
            raise DriverLost(f"no session host came up within {deadline:.0f} s", role="host") from None

    async def _ask(self, method: str, params: dict[str, Any], deadline: float) -> OpAnswer | None:
        """The conductor's answer; None while the session's actors start."""
        if self._conductor is None or not self._up.is_set():
            raise DriverLost("there is no session host at the moment", role="host")
        wire = await self._conductor.connected()
        if wire is None:
            return None
        return OpAnswer.model_validate(await wire.call(method, params, deadline=deadline))

    # --- life of the process

    async def keep_alive(self) -> None:
        """Run a host, and another when it ends, until cancelled."""
        while True:
            try:
                await self._one_life()
            except RatchetError as fault:
                logger.error("the session host did not come up: %s", fault)
            await asyncio.sleep(RESTART_PAUSE)

    async def _one_life(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--wire",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.pid = process.pid
        reader, writer = await asyncio.open_connection(sock=ours)
        wire = WireClient(reader, writer)
        conductor = self._conductor = ConductorWire(wire)
        try:
            await wire.call("ready", {}, deadline=deadlines.HOST_START)
            self._up.set()
            logger.info("session host %d is up", process.pid)
            await self._ping_until_silent(wire, process)
        finally:
            self._up.clear()
            conductor.close()
            wire.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
            logger.warning("session host %d ended with %s", process.pid, process.returncode)

    async def _ping_until_silent(self, wire: WireClient, process: asyncio.subprocess.Process) -> None:
        try:
            while not await wire.closed_within(deadlines.HOST_PING_EVERY):
                # A frozen host keeps its socket open: only an answer shows that it lives.
                await wire.call("ping", {}, deadline=deadlines.HOST_SILENT)
        except RatchetError as silent:
            logger.error("session host %d: %s", process.pid, silent)


def _starting(op: OpId) -> OpAnswer:
    """Callers hear of it, and ask again."""
    return OpAnswer(op=str(op), state=OpState.ABSENT, progress="the session's actors start")
