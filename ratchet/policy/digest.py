"""Digest of named tensors: equal digests mean equal bits, wherever and whenever they were computed."""

from collections.abc import Mapping
from typing import Protocol

import torch
import xxhash


class _Hasher(Protocol):
    def update(self, data: object, /) -> object: ...
    def hexdigest(self) -> str: ...


def digest_tensors(named: Mapping[str, torch.Tensor], hasher: _Hasher | None = None) -> str:
    """Hex digest over sorted (name, dtype, shape, bytes); xxh3-128 unless another hasher is given.

    Fast enough for every step (memory speed), and free of paths, times and storage layout.
    """
    hasher = hasher or xxhash.xxh3_128()
    for name in sorted(named):
        tensor = named[name].detach()
        hasher.update(f"{name}|{str(tensor.dtype).removeprefix('torch.')}|{tuple(tensor.shape)}|".encode())
        flat = tensor.cpu().contiguous().reshape(-1)
        if flat.numel():
            hasher.update(memoryview(flat.view(torch.uint8).numpy()))
    return hasher.hexdigest()
