"""What a staged weight version looks like on the wire. Small; the bytes are elsewhere."""

import math

import xxhash
from pydantic import BaseModel, ConfigDict, Field

from ratchet.spec.ids import WeightVersion

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Dtypes weights may travel in, and their sizes."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(_Model):
    """One tensor, contiguous, at `offset` bytes from the start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bucket: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class Bucket(_Model):
    """A run of whole tensors, with their padding: the unit of digests."""

    offset: int
    num_bytes: int


class Layout(_Model):
    """Where every tensor lies. Both sides keep this order."""

    entries: tuple[Entry, ...]
    buckets: tuple[Bucket, ...]

    @property
    def num_bytes(self) -> int:
        return sum(bucket.num_bytes for bucket in self.buckets)


class PatchInfo(_Model):
    """What a patch of a bucket looks like (ratchet.refit.delta)."""

    num_bytes: int
    checksum: str
    changed: int


class Delta(_Model):
    """How to come from another version to this one."""

    base: str
    """`digest` of the manifest of the version that it is from."""
    base_segment: str = ""
    """`segment` of that manifest, where versions are kept."""
    patches: tuple[PatchInfo, ...]
    """Of each bucket."""


class RefitManifest(_Model):
    """A staged weight version: how to find it, how to read it, and how to know it is right."""

    version: WeightVersion
    mover: str
    segment: str = Field(pattern=r"^ratchet-[A-Za-z0-9._-]+$")
    """Names what is staged: a file in shared memory, or a path of `url`."""
    url: str = ""
    """Where it is served, if it is."""
    token: str = Field(default="", repr=False)
    """What whoever asks there has to show."""
    layout: Layout
    delta: Delta | None = None
    """Receivers that are of its base may take the patches instead of the bytes."""
    bucket_digests: tuple[str, ...]
    """xxh3-128 of each bucket's bytes."""

    @property
    def digest(self) -> str:
        """xxh3-128 over the layout and the digests of the buckets: the same bytes under the same names."""
        hasher = xxhash.xxh3_128(self.layout.model_dump_json().encode())
        hasher.update("".join(self.bucket_digests).encode())
        return hasher.hexdigest()
