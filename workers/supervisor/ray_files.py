"""What a Ray head keeps outside its processes: its token, its temp folder, its actors' shared memory."""

import contextlib
import os
import secrets
import shutil

from ratchet.refit.segments import SHARED_MEMORY
from ratchet.spec.home import Home


def make_token(home: Home) -> None:
    """The secret that every process of the cluster shows; readable by this user only."""
    if not home.ray_token.exists():
        with open(os.open(home.ray_token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))


def clear_files(home: Home) -> None:
    """Remove Ray's temp folder. The logs of its last session stay, as logs/ray-last."""
    with contextlib.suppress(OSError):
        sessions = [path for path in home.ray_temp.glob("session_*") if not path.is_symlink()]
        if sessions:
            kept = home.logs / "ray-last"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(max(sessions, key=lambda path: path.stat().st_mtime) / "logs", kept)
    shutil.rmtree(home.ray_temp, ignore_errors=True)


def clear_segments(home: Home) -> int:
    """Remove the shared memory of this home's actors, none of which may live: how many segments there were.
    A killed trainer leaves one as large as its model."""
    segments = list(SHARED_MEMORY.glob(f"ratchet-{home.tag}*"))
    for segment in segments:
        segment.unlink(missing_ok=True)
    return len(segments)
