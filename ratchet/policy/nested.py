"""Nested dicts of tensors and plain values: the shape of a checkpoint's state."""

from collections.abc import Callable, Mapping

from torch import Tensor

Path = tuple[str, ...]


def map_tensors(state: Mapping[str, object], change: Callable[[Tensor], Tensor]) -> dict[str, object]:
    """A new nested dict with `change` applied to every tensor; other values as they are."""
    changed: dict[str, object] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            changed[name] = map_tensors(value, change)
        else:
            changed[name] = change(value) if isinstance(value, Tensor) else value
    return changed


def flatten(state: Mapping[str, object], prefix: Path = ()) -> dict[Path, object]:
    """Path of keys -> leaf."""
    leaves: dict[Path, object] = {}
    for name, value in state.items():
        path = (*prefix, name)
        leaves |= flatten(value, path) if isinstance(value, Mapping) else {path: value}
    return leaves


def mismatches(expected: Mapping[Path, object], given: Mapping[Path, object]) -> list[str]:
    """Sorted dotted names that are missing, unknown, or of another type, dtype or shape."""
    return sorted(
        ".".join(path)
        for path in expected.keys() | given.keys()
        if path not in expected or path not in given or _kind(expected[path]) != _kind(given[path])
    )


def _kind(leaf: object) -> object:
    return (leaf.dtype, leaf.shape) if isinstance(leaf, Tensor) else type(leaf)
