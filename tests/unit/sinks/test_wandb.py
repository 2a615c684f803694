"""W&B's own files, written offline, hold every step once, whatever happened to the writer."""

import asyncio
import json
import os
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.sinks.wandb import AXIS
from ratchet.spec.home import Home

pytest.importorskip("wandb")
from wandb.proto import wandb_internal_pb2

BLOCK = 32 * 1024
Until = Callable[[Callable[[], Any]], Awaitable[None]]


def curve(folder: Path) -> list[tuple[int, float]]:
    """(step, loss) of everything that `wandb sync` would send."""
    found: list[tuple[int, float]] = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if "loss" in row:
                found.append((int(row[AXIS]), round(row["loss"], 4)))
    return found


def records(log: bytes) -> Iterator[bytes]:
    """Of a file of W&B's: a header of 7 bytes, then LevelDB's log format."""
    parts, at = b"", 7
    while at + 7 <= len(log):
        if BLOCK - at % BLOCK < 7:  # no room for a header: padding
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", log, at + 4)
        parts += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


async def test_a_run_is_there_once_though_its_writer_was_killed(
    runs: Any, home: Home, following: Any, until: Until
) -> None:
    folder = home.root / "wandb" / "r"
    runs.register("r", metrics={"wandb": {"project": "arithmetic"}})
    runs.train("r", 1, 3)
    environment = os.environ | {"RATCHET_HOME": str(home.root)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "workers.sinks", env=environment)
    await until(lambda: list(folder.glob("wandb/offline-run-*/*.wandb")))
    process.kill()
    await process.wait()
    assert len(list(folder.glob("wandb/offline-run-*"))) == 1
    runs.restore("r", 2, 2)
    runs.train("r", 3, 5, incarnation=2)
    runs.end("r", incarnation=2)
    async with following():
        await until(lambda: (kept := runs.positions.get("r", "wandb")) and kept.ended)
    assert curve(folder) == [(1, 1.01), (2, 1.02), (3, 1.03), (4, 2.04), (5, 2.05)]
