"""Files that survive a crash, and disk errors that say what to do about them."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.spec.faults import StorageFault

_FULL = "free space there, or move RATCHET_HOME to a larger disk"
_DENIED = "make it writable for this user, or move RATCHET_HOME"
_CLOSED = "make it readable for this user"
_IN_THE_WAY = "move away the file that is in its place"
_FIXES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: "move away the folder that is in its place",
    errno.ENOENT: "check the path",
}


def storage_fault(error: OSError, path: Path, doing: str) -> StorageFault:
    """The fault behind an OSError, in one line: what could not be done, why, and the fix."""
    cause = os.strerror(error.errno) if error.errno else str(error)
    fix = _FIXES.get(error.errno or 0, "check the disk, or move RATCHET_HOME")
    if doing == "read" and fix is _DENIED:
        fix = _CLOSED
    return StorageFault(f"cannot {doing} {path}: {cause.lower()}; {fix}")


@contextmanager
def storage_faults(path: Path, doing: str) -> Iterator[None]:
    """Turn any OSError of the block into a StorageFault about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_fault(error, path, doing) from error


def write_atomic(path: Path, data: bytes | memoryview) -> None:
    """Create or replace `path`: a reader, or a crash, sees all of `data` or none of it.

    Raises OSError, and then leaves nothing behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def create_once(path: Path, content: bytes) -> None:
    """Create a file with its whole content, unless somebody else was first. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        fsync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync(folder.parent)


def fsync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a file or a whole folder; nothing there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
