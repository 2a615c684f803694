"""`up`: run a supervisor in this process until a signal, or start one that outlives it."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from ratchet.spec import deadlines
from ratchet.spec.faults import Fault, RatchetError, Unavailable, as_error
from ratchet.spec.home import STORE_VARIABLE, Home
from workers import telemetry
from workers.supervisor.environment import stack_environment
from workers.supervisor.freezing import nobody_frozen_holds
from workers.supervisor.leadership import check_nobody_leads
from workers.supervisor.standby import stand_by
from workers.supervisor.state import SupervisorLock, SupervisorState
from workers.supervisor.supervisor import Options, Part, Supervisor

REPORT_FLAG = "--report"


async def run_until_signal(home: Home, options: Options, started: Callable[[SupervisorState], None]) -> None:
    """Run the stack until SIGINT or SIGTERM, then take it down. Raises what its start raises."""
    with SupervisorLock(home):
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with nobody_frozen_holds(home.store_url):
            if options.standby:
                await stand_by(home, options, ended, started)
            else:
                await _run_alone(home, options, ended, started)


async def _run_alone(
    home: Home, options: Options, ended: asyncio.Event, started: Callable[[SupervisorState], None]
) -> None:
    if options.temporal and Part.RAY in options.parts and STORE_VARIABLE in os.environ:
        await asyncio.to_thread(check_nobody_leads, home)
    supervisor = Supervisor(home, options)
    start = asyncio.create_task(supervisor.start())
    end = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait([start, end], return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            started(start.result())
            await end
    finally:
        start.cancel()
        await asyncio.wait([start])
        await supervisor.stop()


def run(home: Home, options: Options, report: int | None, started: Callable[[SupervisorState], None]) -> None:
    """`up --foreground`. With a `report` descriptor (see `detach`), that is told how the start went."""

    def tell(answer: str) -> None:
        if report is not None:
            with os.fdopen(report, "w") as pipe:
                pipe.write(answer)

    def is_up(state: SupervisorState) -> None:
        tell(state.model_dump_json())
        if report is None:
            started(state)

    try:
        telemetry.begin("supervisor", home, file=home.logs / "supervisor.log" if report is None else None)
        asyncio.run(run_until_signal(home, options, is_up))
    except RatchetError as error:
        tell(json.dumps({"error": error.fault().model_dump(mode="json")}))
        raise


def detach(home: Home, words: Sequence[str]) -> SupervisorState:
    """Start `up` with these words in the background and return when all is up. Raises what its start raised,
    or Unavailable."""
    home.logs.mkdir(parents=True, exist_ok=True)
    log = home.logs / "supervisor.log"
    # Its own environment keeps RAY_ADDRESS and the like, to tell that they are ignored.
    mark = {name: value for name, value in stack_environment(home).items() if not name.startswith("RAY_")}
    reading, writing = os.pipe()
    with log.open("ab") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "workers.supervisor", "up", REPORT_FLAG, str(writing), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(writing,),
            env=os.environ | mark,
        )
    os.close(writing)
    try:
        answer = _read_all(reading, deadlines.STACK_READY)
    except BaseException:  # Ctrl-C included: nothing half-started stays
        supervisor.terminate()
        raise
    if not answer:
        supervisor.wait(deadlines.STOP_STACK)
        raise Unavailable(f"the supervisor ended before the stack was up (log: {log})")
    result = json.loads(answer)
    if "error" in result:
        supervisor.wait(deadlines.STOP_STACK)
        raise as_error(Fault.model_validate(result["error"]))
    return SupervisorState.model_validate(result)


def _read_all(descriptor: int, within: float) -> str:
    """What is written until the other side closes. Raises Unavailable after `within` seconds."""
    parts: list[bytes] = []
    deadline = time.monotonic() + within
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(65536)
            if not part:
                return b"".join(parts).decode()
            parts.append(part)
    raise Unavailable(f"the stack was not up within {within:.0f} s: see `ratchet logs supervisor`")
