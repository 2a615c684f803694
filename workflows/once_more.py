"""Deadlines count the time that the stack was down: passed overnight, one says nothing of what it was for."""

from collections.abc import Callable
from typing import TypeVar

from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from workflows.failures import expired

T = TypeVar("T")


async def once_more(start: Callable[[], ActivityHandle[T]], first: ActivityHandle[T] | None = None) -> T:
    """The result of an activity, which is scheduled again if its deadline passes. `first`: it is under way.

    Raises ActivityError with its fault, or after the second deadline in a row.
    """
    try:
        return await (first or start())
    except ActivityError as error:
        if not expired(error):
            raise
    return await start()
