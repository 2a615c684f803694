"""Checks what a stack needs of this machine."""

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from workers.supervisor import temporal_server
from workers.supervisor.ports import Ports, is_free, owner
from workers.supervisor.processes import of_stack
from workers.supervisor.ray_head import OBJECT_STORE_BYTES
from workers.supervisor.state import PartStatus, supervisor_pid
from workers.supervisor.status import status

GIB = 1 << 30
DISK_NEEDED = 5 * GIB
PYTHONS = ((3, 11), (3, 12))


class Check(BaseModel):
    """One thing that was looked at."""

    model_config = ConfigDict(frozen=True)

    name: str
    verdict: Literal["ok", "note", "bad"]
    found: str
    fix: str = ""


class Diagnosis(BaseModel):
    """All of them."""

    model_config = ConfigDict(frozen=True)

    home: str
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.verdict != "bad" for check in self.checks)


def doctor(home: Home) -> Diagnosis:
    """Look at everything; changes nothing."""
    checks = (*_programs(), *_space(home), *_surroundings(), *_stack(home))
    return Diagnosis(home=str(home.root), checks=checks)


def _programs() -> Iterator[Check]:
    fits = sys.version_info[:2] in PYTHONS
    yield Check(
        name="python",
        verdict="ok" if fits else "bad",
        found=f"{platform.python_version()} at {sys.executable}",
        fix="" if fits else "use Python 3.11 or 3.12",
    )
    try:
        yield Check(name="temporal", verdict="ok", found=str(temporal_server.binary()))
    except RatchetError as error:
        yield Check(name="temporal", verdict="bad", found="not found", fix=str(error))
    try:
        yield Check(name="ray", verdict="ok", found=metadata.version("ray"))
    except metadata.PackageNotFoundError:
        yield Check(name="ray", verdict="bad", found="not installed", fix="pip install 'ratchet[engine]'")


def _space(home: Home) -> Iterator[Check]:
    shared = shutil.disk_usage("/dev/shm").free
    yield Check(
        name="shared memory",
        verdict="ok" if shared > 2 * OBJECT_STORE_BYTES else "bad",
        found=f"{shared / GIB:.1f} GiB free in /dev/shm",
        fix=""
        if shared > 2 * OBJECT_STORE_BYTES
        else "Ray's object store and the transfer of weights need 1 GiB and more: docker run --shm-size=8g",
    )
    place = next(folder for folder in (home.root, *home.root.parents) if folder.exists())
    disk = shutil.disk_usage(place).free
    yield Check(
        name="disk",
        verdict="ok" if disk > DISK_NEEDED else "bad",
        found=f"{disk / GIB:.1f} GiB free at {place}",
        fix="" if disk > DISK_NEEDED else "checkpoints need room: free some, or choose another RATCHET_HOME",
    )
    usable = place.is_dir() and os.access(place, os.W_OK)
    yield Check(
        name="state folder",
        verdict="ok" if usable else "bad",
        found=str(home.root),
        fix="" if usable else f"{place} cannot be written into: choose another RATCHET_HOME",
    )


def _surroundings() -> Iterator[Check]:
    if address := os.environ.get("RAY_ADDRESS"):
        yield Check(
            name="RAY_ADDRESS",
            verdict="note",
            found=f"{address} is set, and ignored",
            fix="`ratchet up --ray ADDRESS` uses that cluster",
        )
    cores = len(os.sched_getaffinity(0))
    yield Check(name="cores", verdict="ok" if cores > 1 else "note", found=str(cores))


def _stack(home: Home) -> Iterator[Check]:
    pid = supervisor_pid(home)
    if pid is not None:
        yield Check(name="stack", verdict="ok", found=f"runs (supervisor pid {pid})")
        yield from _ends(status(home).parts)
        return
    leftovers = [str(process.pid) for process in of_stack(home)]
    stale = bool(leftovers) or home.state_file.exists()
    yield Check(
        name="stack",
        verdict="bad" if leftovers else "note" if stale else "ok",
        found=f"no supervisor, but processes {', '.join(leftovers)}"
        if leftovers
        else f"no supervisor, but {home.state_file}"
        if stale
        else "does not run",
        fix="`ratchet down` clears it away" if stale else "",
    )
    for name, port in Ports.remembered(home).items():
        if name != "ray" and not is_free(port):
            yield Check(
                name=f"port of {name}",
                verdict="note",
                found=f"{port}, used before, is taken by {owner(port)}",
                fix="another one will be chosen, and links change",
            )


def _ends(parts: Iterable[PartStatus]) -> Iterator[Check]:
    """What died while the stack ran."""
    for part in parts:
        if part.last_end:
            yield Check(
                name=part.name,
                verdict="note" if part.state in ("ready", "existing") else "bad",
                found=f"{part.state}, started {part.starts}×; before: {part.last_end}",
                fix=f"`ratchet logs {Path(part.log).stem}` shows more" if part.log else "",
            )
