"""Named moments that a test can hold, slow down or die at. Off unless RATCHET_FAILPOINTS names a folder.

In that folder, a file `<name>` arms the failpoint; its text is one of

    hold            wait until `<name>.release` exists
    sleep SECONDS
    kill            SIGKILL this very process

with an optional count before it: `3 hold` acts on the third passing only. Each time it acts,
`<name>.hit` gets a line with the process id, so a test knows that the moment was really met.
"""

import os
import signal
import threading
import time
from pathlib import Path

from ratchet.spec import deadlines

VARIABLE = "RATCHET_FAILPOINTS"
_HOLD_POLL = 0.01

_passes: dict[str, int] = {}
_lock = threading.Lock()


def failpoint(name: str) -> None:
    """Pass a named moment. Costs one look-up in the environment when failpoints are off."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    armed = Path(folder) / name
    try:
        words = armed.read_text().split()
    except FileNotFoundError:
        return
    with _lock:
        _passes[name] = _passes.get(name, 0) + 1
        passed = _passes[name]
    at = int(words.pop(0)) if words[0].isdigit() else None
    if at is not None and passed != at:
        return
    with armed.with_suffix(armed.suffix + ".hit").open("a") as hits:
        hits.write(f"{os.getpid()}\n")
    match words:
        case ["hold"]:
            _hold(armed.with_suffix(armed.suffix + ".release"))
        case ["sleep", seconds]:
            time.sleep(float(seconds))
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise ValueError(f"failpoint {name}: {' '.join(words)!r} is none of hold, sleep SECONDS, kill")


def _hold(release: Path) -> None:
    # A held process polls a file, since whoever releases it may be any process at all.
    end = time.monotonic() + deadlines.FAILPOINT_HOLD
    while not release.exists() and time.monotonic() < end:
        time.sleep(_HOLD_POLL)
