"""Taking a stack down from outside, and removing what a stack leaves behind, however it ended."""

import shutil
import signal

from pydantic import BaseModel, ConfigDict

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from workers.supervisor.net import eventually
from workers.supervisor.processes import end_all, look, of_stack, signal_to
from workers.supervisor.ray_files import clear_files, clear_segments
from workers.supervisor.state import supervisor_pid


class Swept(BaseModel):
    """What was removed."""

    model_config = ConfigDict(frozen=True)

    supervisor: int | None = None
    """Pid of the supervisor that was asked to stop."""
    processes: int = 0
    """Killed because they were left over."""
    segments: int = 0
    """Shared-memory segments."""


async def down(home: Home) -> Swept:
    """Stop the stack of `home`: nothing of it runs afterwards, whatever state it was in. Runs, checkpoints
    and logs stay. Raises Unavailable if a process survives SIGKILL."""
    pid = supervisor_pid(home)
    if pid is not None:
        signal_to(pid, signal.SIGTERM)
        try:
            await eventually(lambda: _ended(pid), deadlines.STOP_STACK, "the supervisor does not stop")
        except Unavailable:
            await end_all(lambda: [process] if (process := look(pid)) else [], deadlines.PROCESSES_GONE)
    swept = await sweep(home)
    return swept.model_copy(update={"supervisor": pid})


async def sweep(home: Home) -> Swept:
    """Remove what is left of a stack that has no supervisor: processes, shared memory, temp folder, state."""
    processes = await end_all(lambda: of_stack(home), deadlines.PROCESSES_GONE)
    segments = clear_segments(home)
    clear_files(home)
    shutil.rmtree(home.root / "alive", ignore_errors=True)
    home.state_file.unlink(missing_ok=True)
    return Swept(processes=processes, segments=segments)


async def _ended(pid: int) -> bool:
    return look(pid) is None
