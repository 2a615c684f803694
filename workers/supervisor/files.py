"""Writing files that others read while they are written."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old content or the new one, never a part of it. Raises OSError, leaving the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
