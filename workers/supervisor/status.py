"""How the stack is, and where its logs are: read from its files, without asking it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ratchet.spec.faults import SpecError, Unavailable
from ratchet.spec.home import Home
from workers.supervisor.processes import look
from workers.supervisor.state import LeaseView, PartStatus, SupervisorState, supervisor_pid


class StackStatus(BaseModel):
    """What `ratchet status` shows."""

    model_config = ConfigDict(frozen=True)

    home: str
    running: bool
    """Whether a supervisor looks after this home."""
    ready: bool = False
    supervisor_pid: int | None = None
    started_at: float | None = None
    temporal_ui: str | None = None
    api_url: str | None = None
    max_sessions: int | None = None
    parts: tuple[PartStatus, ...] = ()
    lease: LeaseView | None = None
    """Of a supervisor that stands by, or that others stand by for."""

    @property
    def standing_by(self) -> bool:
        """Whether it only waits for another one's place."""
        return self.lease is not None and self.lease.role == "standby"


def status(home: Home) -> StackStatus:
    """How the stack of `home` is. Raises Unavailable if its state file is damaged."""
    pid = supervisor_pid(home)
    if pid is None:
        return StackStatus(home=str(home.root), running=False)
    try:
        state = SupervisorState.load(home)
    except Unavailable:
        if home.state_file.exists():
            raise
        return StackStatus(home=str(home.root), running=True, supervisor_pid=pid)
    return StackStatus(
        home=str(home.root),
        running=True,
        ready=state.ready,
        supervisor_pid=pid,
        started_at=state.started_at,
        temporal_ui=state.temporal_ui,
        api_url=state.api_url,
        max_sessions=state.max_sessions,
        parts=tuple(_checked(part) for part in state.parts),
        lease=state.lease,
    )


def _checked(part: PartStatus) -> PartStatus:
    """The file may be a moment old: a pid that is gone is not shown."""
    return part.model_copy(update={"pid": None}) if part.pid and look(part.pid) is None else part


def logs(home: Home) -> dict[str, Path]:
    """Every log there is, by the name to ask for."""
    found = {path.stem: path for path in sorted(home.logs.glob("*.log"))}
    for folder in (home.logs / "ray-last", home.ray_temp / "session_latest" / "logs"):
        found |= {
            f"ray/{path.name}": path
            for path in sorted(folder.glob("*"))
            if path.is_file() and path.stat().st_size
        }
    return found


def log(home: Home, name: str) -> Path:
    """The log of that name. Raises SpecError, naming those there are."""
    found = logs(home)
    if name not in found:
        known = ", ".join(known for known in found if "/" not in known) or "none yet"
        raise SpecError(f"no log {name!r} in {home.logs}: there is {known}; Ray's own are ray/NAME")
    return found[name]
