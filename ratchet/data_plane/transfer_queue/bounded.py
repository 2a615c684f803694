"""Calls of the library that end."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import torch

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.errors import DataPlaneError, DataPlaneTimeout, DataPlaneUnavailable
from ratchet.data_plane.partition import ROLE
from ratchet.spec import deadlines

Result = TypeVar("Result")


def tensor(cell: Cell) -> torch.Tensor:
    """Its bytes, not copied unless nobody may write to them, which torch does not take."""
    return torch.from_numpy(cell if cell.flags.writeable else cell.copy())


class Gone(Exception):
    """A row that was asked for is not there, or not all of it."""


async def bounded(what: str, work: Awaitable[Result], num_bytes: int = 0) -> Result:
    """Its result. Raises DataPlaneTimeout after the time that a call with so many bytes may take,
    DataPlaneUnavailable for what it raises, and Gone as it is."""
    within = deadlines.DATA_PLANE_CALL + num_bytes / deadlines.DATA_PLANE_BYTES_PER_S
    try:
        async with asyncio.timeout(within):
            return await work
    except TimeoutError:
        raise DataPlaneTimeout(f"TransferQueue answered no {what} within {within:.0f} s", role=ROLE) from None
    except (Gone, DataPlaneError):
        raise
    except Exception as error:
        message = f"TransferQueue failed to {what}: {type(error).__name__}: {error}"
        raise DataPlaneUnavailable(message, role=ROLE) from error
