"""Folders and files that are created once, and are still there after a power cut."""

import os
from pathlib import Path

from ratchet.artifacts.durable import fsync


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync(folder.parent)


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
