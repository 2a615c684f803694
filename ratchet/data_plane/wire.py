"""Metadata that goes from process to process with every call."""

from functools import cache
from operator import attrgetter
from typing import Any


class Wired:
    """A frozen dataclass with slots, of two fields or more, whose pickle is its fields in order: less than
    half the time of what dataclasses do by themselves, and that is most of a call of the ledger."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), _fields(type(self))(self)


@cache
def _fields(of: Any) -> Any:
    return attrgetter(*of.__match_args__)
