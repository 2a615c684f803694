"""Who holds an SQLite store's write lock, as the kernel tells it."""

import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import make_url

_LOCKS = Path("/proc/locks")


def writers_of(url: str) -> list[int]:
    """As `writers`, of the store at this URL; none if it is no file of SQLite's."""
    parsed = make_url(url)
    if not (parsed.database and parsed.drivername.startswith("sqlite")):
        return []
    return writers(Path(parsed.database))


def writers(database: Path) -> list[int]:
    """The processes of this host that keep all others from writing to `database`; none if nobody can tell.

    Nothing is opened: a process that closes any descriptor of a file loses the locks it has on it (POSIX),
    and this process may well have some.
    """
    inodes: set[str] = set()
    for name in (f"{database}-shm", str(database)):  # with a write-ahead log, and without one
        with suppress(OSError):
            inodes.add(str(os.stat(name).st_ino))
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 11632 fe:00:2146734 120 120; one that waits for a lock has -> second.
        fields = line.split()
        if fields[1] == "POSIX" and fields[3] == "WRITE" and fields[5].rpartition(":")[2] in inodes:
            pid = int(fields[4])
            # Inode numbers repeat from one file system to the next.
            if pid not in found and _has_open(pid, database):
                found.append(pid)
    return found


def _has_open(pid: int, database: Path) -> bool:
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samefile(f"/proc/{pid}/fd/{descriptor}", database):
                    return True
    return False
