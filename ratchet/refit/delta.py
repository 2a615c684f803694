"""The `delta` codec: what has changed from one staged weight version to the next, in few bytes.

Two versions of one layout are compared bit by bit, as whole numbers of the elements' width: -0.0 and 0.0
differ, a NaN equals itself. Per bucket, the places of changed elements go as gaps and their new bits beside
them, both compressed. After a step of a small learning rate, few bfloat16 weights have changed at all.

A patch is right or refused: its checksum is looked at before a bit is written, the digest of the patched
bucket after. One that was applied to anything but its base is found out by that digest; the receiver is then
of no version, and the next refit has to be full.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from ratchet.refit.manifest import DTYPE_BYTES, Bucket, Layout, PatchInfo
from ratchet.spec.faults import InfraFault

UNSIGNED = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_GAPS = tuple(np.dtype(f"<u{width}") for width in (1, 2, 4, 8))
_HEADER = struct.Struct("<4sBBxxQQQ")
"""Magic, width of an element, width of a gap (0: none, every element is there), changed elements, bytes of
both parts before and after compression."""
_MAGIC = b"rdl1"
_CODEC = pa.Codec("zstd", compression_level=1)

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Patch:
    """From one version of a bucket to the next."""

    bucket: int
    body: bytes
    """Empty: nothing in it has changed."""
    checksum: str
    """xxh3-128 of `body`."""
    changed: int
    """Elements, of the bucket's own dtype."""

    @property
    def info(self) -> PatchInfo:
        return PatchInfo(num_bytes=len(self.body), checksum=self.checksum, changed=self.changed)


def encode(old: memoryview, new: memoryview, layout: Layout) -> Iterator[Patch]:
    """A patch for each bucket, in order. Both buffers hold `layout.num_bytes` at least."""
    widths = element_widths(layout)
    for index, bucket in enumerate(layout.buckets):
        width = widths[index]
        before, after = (_elements(buffer, bucket, width) for buffer in (old, new))
        places = np.flatnonzero(before != after)
        body = _packed(places, after, width) if len(places) else b""
        yield Patch(index, body, xxhash.xxh3_128(body).hexdigest(), len(places))


def apply(buffer: memoryview, layout: Layout, patches: Sequence[Patch], digests: Sequence[str]) -> None:
    """Bring `buffer` from its version to the next. Applied again, it changes nothing.

    `digests`: of the next version's buckets (RefitManifest.bucket_digests). Raises InfraFault: with nothing
    changed if a patch is not what was sent, and with the buffer spoilt if it was not of the patches' base.
    """
    for patch in patches:
        if xxhash.xxh3_128(patch.body).hexdigest() != patch.checksum:
            raise InfraFault(f"the patch of bucket {patch.bucket} is not what was sent: send it again")
    if sorted(patch.bucket for patch in patches) != list(range(len(layout.buckets))):
        raise InfraFault(
            f"{len(patches)} patches for {len(layout.buckets)} buckets: each has to have exactly one"
        )
    widths = element_widths(layout)
    for patch in patches:
        bucket = layout.buckets[patch.bucket]
        if patch.body:
            _unpack_into(_elements(buffer, bucket, widths[patch.bucket]), patch.body)
        found = xxhash.xxh3_128(buffer[bucket.offset : bucket.offset + bucket.num_bytes]).hexdigest()
        if found != digests[patch.bucket]:
            raise InfraFault(
                f"bucket {patch.bucket} is not what its patch was to make of it, since it was not of the "
                "patch's base: the next refit has to be full"
            )


def element_widths(layout: Layout) -> list[int]:
    """Bytes of an element of each bucket: of its narrowest dtype, which every other is a multiple of."""
    widths = [max(UNSIGNED)] * len(layout.buckets)
    for entry in layout.entries:
        widths[entry.bucket] = min(widths[entry.bucket], DTYPE_BYTES[entry.dtype])
    return widths


def _elements(buffer: memoryview, bucket: Bucket, width: int) -> np.ndarray:
    dtype = UNSIGNED[width]
    return np.frombuffer(buffer, dtype, bucket.num_bytes // width, bucket.offset)


def _packed(places: np.ndarray, after: np.ndarray, width: int) -> bytes:
    if len(places) == len(after):
        gap_width, gaps = 0, b""
    else:
        steps = np.diff(places, prepend=-1) - 1
        gap_dtype = next(dtype for dtype in _GAPS if steps.max() <= np.iinfo(dtype).max)
        gap_width, gaps = gap_dtype.itemsize, steps.astype(gap_dtype).tobytes()
    # Gaps first and values after them: each compresses better among its kind.
    plain = gaps + after[places].tobytes()
    packed = _CODEC.compress(plain, asbytes=True)
    header = _HEADER.pack(_MAGIC, width, gap_width, len(places), len(plain), len(packed))
    return header + packed


def _unpack_into(elements: np.ndarray, body: bytes) -> None:
    magic, width, gap_width, count, plain_size, packed_size = _HEADER.unpack_from(body)
    packed = memoryview(body)[_HEADER.size :]
    if (magic, width, len(packed)) != (_MAGIC, elements.itemsize, packed_size):
        raise InfraFault("a patch is of another format, or of another layout: the next refit has to be full")
    plain = _CODEC.decompress(packed, decompressed_size=plain_size)
    values = np.frombuffer(plain, elements.dtype, count, gap_width * count)
    if not gap_width:
        elements[:] = values
        return
    gaps = np.frombuffer(plain, f"<u{gap_width}", count)
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if places[-1] >= len(elements):
        raise InfraFault("a patch reaches beyond its bucket: the next refit has to be full")
    elements[places] = values
