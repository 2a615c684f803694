"""Digest of named tensors: equal digests mean equal bits, wherever and whenever they were computed."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import xxhash


class Hasher(Protocol):
    """What hashlib's and xxhash's hashers have in common."""

    def update(self, data: Any, /) -> object: ...
    def hexdigest(self) -> str: ...


def digest_tensors(named: Mapping[str, torch.Tensor], hasher: Hasher | None = None) -> str:
    """Hex digest over sorted (name, dtype, shape, bytes); xxh3-128 unless another hasher is given.

    Fast enough for every step (memory speed), and free of paths, times and storage layout.
    """
    chosen: Hasher = xxhash.xxh3_128() if hasher is None else hasher
    for name in sorted(named):
        tensor = named[name].detach()
        chosen.update(f"{name}|{str(tensor.dtype).removeprefix('torch.')}|{tuple(tensor.shape)}|".encode())
        flat = tensor.cpu().contiguous().reshape(-1)
        if flat.numel():
            chosen.update(flat.view(torch.uint8).numpy().data)
    return chosen.hexdigest()
