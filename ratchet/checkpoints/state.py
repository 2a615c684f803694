"""The state a checkpoint holds, as a flat dict; and its digest.

A state is a nested dict (keys: str or int) of tensors and plain values. Flat, a tensor is one entry, and
so is the largest part around it that has no tensor in it: `optimizer/param_groups` is one plain value.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import cast

import torch

from ratchet.policy.digest import digest_tensors
from ratchet.spec.faults import RatchetError

_SEPARATOR = "/"


def flatten(state: Mapping[str, object]) -> dict[str, object]:
    """Path (`model/lm_head.weight`) -> tensor or plain value. Raises RatchetError on equal paths."""
    flat: dict[str, object] = {}
    for path, value in _leaves(state, ()):
        name = _SEPARATOR.join(path)
        if name in flat:
            raise RatchetError(f"two entries of the state have the path {name}; rename one")
        flat[name] = value
    return flat


def unflatten(template: Mapping[str, object], flat: Mapping[str, object]) -> dict[str, object]:
    """The inverse of `flatten`, for the structure of `template`."""
    return cast(dict[str, object], _rebuild(template, (), flat))


def state_digest(state: Mapping[str, object]) -> str:
    """sha256 over the sorted (name, dtype, shape, bytes) of tensors and plain values.

    Raises RatchetError on a value that has no canonical form (an object, an array).
    """
    named: dict[str, torch.Tensor] = {}
    for name, value in flatten(state).items():
        if isinstance(value, torch.Tensor):
            named[name] = value
        else:
            text = canonical(value, name).encode()
            named[f"{name} (plain)"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return digest_tensors(named, hashlib.sha256())


def canonical(value: object, name: str) -> str:
    """Text of a plain value: equal texts mean equal values of equal types, whatever a dict's order."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value))  # float subclasses (numpy's) have a repr of their own
    if isinstance(value, list | tuple):
        inner = ",".join(canonical(item, name) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, Mapping):
        pairs = sorted(f"{canonical(key, name)}:{canonical(item, name)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    raise RatchetError(
        f"{name} holds a {type(value).__name__}; a checkpoint holds tensors, numbers, text, bytes, None, "
        "and lists, tuples and dicts of them"
    )


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, item in _children(value):
        if not isinstance(item, torch.Tensor) and _holds_tensor(item):
            yield from _leaves(item, (*path, str(key)))
        else:
            yield (*path, str(key)), item


def _rebuild(template: object, path: tuple[str, ...], flat: Mapping[str, object]) -> object:
    built: dict[object, object] = {}
    for key, item in _children(template):
        below = (*path, str(key))
        if not isinstance(item, torch.Tensor) and _holds_tensor(item):
            built[key] = _rebuild(item, below, flat)
        else:
            built[key] = flat[_SEPARATOR.join(below)]
    if isinstance(template, list):
        return list(built.values())
    return tuple(built.values()) if isinstance(template, tuple) else built


def _children(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def _holds_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) or any(_holds_tensor(item) for _, item in _children(value))
