"""The core every mover shares: lay tensors out, cast and copy them in, verify and view them out."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import xxhash

from ratchet.refit.manifest import DTYPE_BYTES, Bucket, Entry, Layout, RefitManifest
from ratchet.spec.faults import InfraFault

ALIGNMENT = 64
"""Bytes: a cache line, and enough for every vector load."""
BUCKET_BYTES = 4 << 20
"""A bucket is full past this. It stays in the CPU's cache between being written and being digested."""


def plan(wire_dtypes: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> Layout:
    """Lay out the tensors of `shapes`, sorted by name, each in the dtype that `wire_dtypes` asks for.

    Raises InfraFault if the two do not name the same tensors, or for a dtype that cannot travel.
    """
    check_names(wire_dtypes, shapes)
    entries: list[Entry] = []
    buckets: list[Bucket] = []
    start = end = 0
    for name in sorted(wire_dtypes):
        if end - start >= BUCKET_BYTES:
            buckets.append(Bucket(offset=start, num_bytes=end - start))
            start = end
        entry = Entry(
            name=name,
            dtype=wire_dtypes[name],
            shape=tuple(shapes[name]),
            offset=end,
            bucket=len(buckets),
        )
        entries.append(entry)
        end += -(-entry.num_bytes // ALIGNMENT) * ALIGNMENT
    if end > start or not buckets:
        buckets.append(Bucket(offset=start, num_bytes=end - start))
    return Layout(entries=tuple(entries), buckets=tuple(buckets))


def stage(weights: Mapping[str, torch.Tensor], layout: Layout, buffer: memoryview) -> tuple[str, ...]:
    """Cast and copy `weights` into `buffer`, which holds `layout.num_bytes` at least.

    Returns the xxh3-128 of each bucket.
    """
    digests: list[str] = []
    by_bucket: list[list[Entry]] = [[] for _ in layout.buckets]
    for entry in layout.entries:
        by_bucket[entry.bucket].append(entry)
    for bucket, entries in zip(layout.buckets, by_bucket, strict=True):
        for entry in entries:
            _view(buffer, entry).copy_(weights[entry.name].detach())
            padding = -entry.num_bytes % ALIGNMENT
            end = entry.offset + entry.num_bytes
            buffer[end : end + padding] = bytes(padding)
        digests.append(_digest(buffer, bucket))
    return tuple(digests)


def receive(buffer: memoryview, manifest: RefitManifest) -> dict[str, torch.Tensor]:
    """Name -> tensor over the bytes of `buffer`, without a copy, once every bucket's digest is right.

    Raises InfraFault naming the first bucket, and its tensors, that is not what the sender staged.
    """
    layout = manifest.layout
    for index, (bucket, expected) in enumerate(zip(layout.buckets, manifest.bucket_digests, strict=True)):
        if _digest(buffer, bucket) != expected:
            names = [entry.name for entry in layout.entries if entry.bucket == index]
            raise InfraFault(
                f"refit of {manifest.version}: bucket {index} of {manifest.segment} ({_some(names)}) does "
                "not have the digest it was staged with; stage it again"
            )
    return {entry.name: _view(buffer, entry) for entry in layout.entries}


def _view(buffer: memoryview, entry: Entry) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    count = entry.num_bytes // DTYPE_BYTES[entry.dtype]
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=entry.offset).view(entry.shape)


def _digest(buffer: memoryview, bucket: Bucket) -> str:
    return xxhash.xxh3_128(buffer[bucket.offset : bucket.offset + bucket.num_bytes]).hexdigest()


def check_names(wire_dtypes: Mapping[str, str], shapes: Mapping[str, object]) -> None:
    """Raises InfraFault if the two do not name the same tensors, or for a dtype that cannot travel."""
    if missing := wire_dtypes.keys() - shapes.keys():
        raise InfraFault(f"generators want tensors that the trainer does not have: {_some(missing)}")
    if unknown := shapes.keys() - wire_dtypes.keys():
        raise InfraFault(f"the trainer has tensors that no generator takes: {_some(unknown)}")
    for name, dtype in wire_dtypes.items():
        if dtype not in DTYPE_BYTES:
            raise InfraFault(f"{name} cannot travel as {dtype}; allowed are {', '.join(DTYPE_BYTES)}")


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more" if rest else first
