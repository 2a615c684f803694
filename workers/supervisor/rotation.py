"""Logs that do not grow for ever: whoever writes one keeps writing into it, and what was in it moves away.

Copied and truncated, since the writers are other processes that hold the file open (for appending, so that
they go on at its new end). Lines written between the copy and the truncation are lost.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
from pathlib import Path
from typing import Never

logger = logging.getLogger(__name__)

LARGEST_BYTES = 20 << 20
KEPT = 3
"""Older parts of a log: NAME.log.1 is the newest of them."""
LOOK_EVERY = 30.0


def rotate(log: Path) -> bool:
    """Empty `log` if it is too large: whether it was. Raises OSError."""
    try:
        if log.stat().st_size <= LARGEST_BYTES:
            return False
    except FileNotFoundError:
        return False
    parts = [log.with_name(f"{log.name}.{number}") for number in range(1, KEPT + 1)]
    for newer, older in reversed(list(itertools.pairwise(parts))):
        with contextlib.suppress(FileNotFoundError):
            newer.replace(older)
    try:
        shutil.copyfile(log, parts[0])
    except OSError as error:  # the disk is full: a log must not be what keeps it full
        logger.error("%s is emptied without a copy: %s", log, error)
        parts[0].unlink(missing_ok=True)
    os.truncate(log, 0)
    return True


async def keep_small(folder: Path) -> Never:
    """Rotate every log of `folder` that grows too large."""
    while True:
        await asyncio.to_thread(_rotate_all, folder)
        await asyncio.sleep(LOOK_EVERY)


def _rotate_all(folder: Path) -> None:
    for log in folder.glob("*.log"):
        try:
            rotate(log)
        except OSError as error:
            logger.error("%s cannot be rotated: %s", log, error)
