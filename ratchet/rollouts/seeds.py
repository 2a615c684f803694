"""Sampling seeds: a function of what is sampled, never of when, where or in which attempt."""

import xxhash


def sample_seed(seed: int, position: int, sample: int, space: str = "train") -> int:
    """The 63-bit seed of one sample: xxh3-64 of (space, spec.seed, cursor position, sample)."""
    return xxhash.xxh3_64_intdigest(f"{space}/{seed}/{position}/{sample}".encode()) >> 1
