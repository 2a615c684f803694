"""Cursors: where a list goes on, opaque to whoever carries it back."""

import base64
import binascii
from typing import Annotated

from fastapi import Query

from api.problems import BadRequest

CursorQuery = Annotated[str | None, Query(description="`next_cursor` of the page before.", max_length=200)]


def cursor_after(place: str | int) -> str:
    return base64.urlsafe_b64encode(str(place).encode()).decode()


def place_of(cursor: str) -> str:
    """Raises BadRequest."""
    try:
        return base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise unknown(cursor) from None


def number_of(cursor: str | None) -> int | None:
    """For lists that are ordered by a number. Raises BadRequest."""
    if cursor is None:
        return None
    place = place_of(cursor)
    if not (place.isdecimal() and len(place) < 19):
        raise unknown(cursor)
    return int(place)


def unknown(cursor: str) -> BadRequest:
    return BadRequest(f"cursor {cursor!r} is not one this API gave: leave it out for the first page")
