"""What has changed, bit by bit, and nothing else."""

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.refit import staging
from ratchet.refit.delta import Patch, apply, encode
from ratchet.refit.manifest import Layout
from ratchet.refit.staging import plan, stage
from ratchet.spec.faults import InfraFault

Weights = dict[str, torch.Tensor]


def staged(weights: Weights, layout: Layout) -> tuple[bytearray, tuple[str, ...]]:
    buffer = bytearray(layout.num_bytes)
    return buffer, stage(weights, layout, memoryview(buffer))


def layout_of(weights: Weights) -> Layout:
    wire = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in weights.items()}
    return plan(wire, {name: tensor.shape for name, tensor in weights.items()})


def patched(old: Weights, new: Weights) -> tuple[bytearray, bytearray, list[Patch]]:
    """The old version's bytes after the patches, the new version's, and the patches."""
    layout = layout_of(old)
    (before, _), (after, digests) = staged(old, layout), staged(new, layout)
    patches = list(encode(memoryview(before), memoryview(after), layout))
    apply(memoryview(before), layout, patches, digests)
    return before, after, patches


def model(seed: int, dtype: torch.dtype) -> Weights:
    torch.manual_seed(seed)
    shapes = {"embedding": (64, 33), "norm": (7,), "scalar": (), "none": (0, 4), "wide": (3, 257)}
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 1.0])
def test_a_patched_version_is_the_next_one_bit_by_bit(dtype: torch.dtype, share: float, monkeypatch) -> None:
    monkeypatch.setattr(staging, "BUCKET_BYTES", 2048)
    old = model(0, dtype)
    new = {name: torch.where(torch.rand(w.shape) < share, w * 2 + 1, w) for name, w in old.items()}
    before, after, patches = patched(old, new)
    assert before == after
    assert len(patches) == len(layout_of(old).buckets) > 1
    assert sum(patch.changed for patch in patches) == sum(int((new[n] != old[n]).sum()) for n in old)
    if not share:
        assert all(patch.body == b"" for patch in patches)


def test_few_changes_are_few_bytes() -> None:
    old = {"w": torch.randn(1 << 20).to(torch.bfloat16)}
    new = {"w": torch.where(torch.rand(1 << 20) < 0.01, old["w"] * 1.01, old["w"])}
    _, after, patches = patched(old, new)
    assert sum(len(patch.body) for patch in patches) < 0.03 * len(after)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (0x0000, 0x8000),  # 0.0 and -0.0
        (0x8000, 0x0000),
        (0x7FC0, 0x7FC1),  # two NaNs
        (0x7F80, 0x7FC0),  # infinity, and a NaN
    ],
)
def test_values_that_compare_equal_or_not_at_all_arrive_bit_by_bit(old: int, new: int) -> None:
    def one(bits: int) -> Weights:
        plain = np.array([0x3F80, bits, 0x7FC0], dtype=np.uint16).view(np.int16)
        return {"w": torch.from_numpy(plain.copy()).view(torch.bfloat16)}

    before, after, patches = patched(one(old), one(new))
    assert before == after
    assert [patch.changed for patch in patches] == [1], "the NaN that stays is none"


def test_a_bucket_of_two_dtypes_is_compared_in_the_narrower_one() -> None:
    old = {"a": torch.randn(5), "b": torch.randn(5).to(torch.bfloat16)}
    new = {"a": old["a"] + 1e-3, "b": old["b"] + 1}
    before, after, _ = patched(old, new)
    assert before == after


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 70_000),
    places=st.sets(st.integers(0, 69_999), max_size=8),
    seed=st.integers(0, 9),
)
def test_wherever_the_changes_are(size: int, places: set[int], seed: int) -> None:
    """Gaps of one, two and four bytes."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, size, dtype=np.uint16)
    changed = bits.copy()
    changed[[place for place in places if place < size]] ^= 0x4001
    old, new = ({"w": torch.from_numpy(each.view(np.int16)).view(torch.bfloat16)} for each in (bits, changed))
    before, after, patches = patched(old, new)
    assert before == after
    assert patches[0].changed == sum(place < size for place in places)


class TestRefused:
    @pytest.fixture
    def made(self):
        old = model(0, torch.bfloat16)
        new = {name: tensor * 2 for name, tensor in old.items()}
        layout = layout_of(old)
        (before, _), (after, digests) = staged(old, layout), staged(new, layout)
        return layout, before, digests, list(encode(memoryview(before), memoryview(after), layout))

    def test_applied_twice_changes_nothing(self, made) -> None:
        layout, buffer, digests, patches = made
        for _ in range(2):
            apply(memoryview(buffer), layout, patches, digests)

    def test_one_that_was_damaged_on_the_way_writes_nothing(self, made) -> None:
        layout, buffer, digests, (patch,) = made
        before = bytes(buffer)
        damaged = bytearray(patch.body)
        damaged[len(damaged) // 2] ^= 1
        with pytest.raises(InfraFault, match="bucket 0 is not what was sent"):
            apply(memoryview(buffer), layout, [Patch(0, bytes(damaged), patch.checksum, 1)], digests)
        assert bytes(buffer) == before

    def test_patches_that_are_missing_or_twice(self, made) -> None:
        layout, buffer, digests, patches = made
        for wrong in ([], patches * 2):
            with pytest.raises(InfraFault, match="each has to have exactly one"):
                apply(memoryview(buffer), layout, wrong, digests)

    def test_another_base(self, made) -> None:
        layout, buffer, _, _ = made
        digests = [xxhash.xxh3_128(bytes(buffer)).hexdigest()]
        unchanged = list(encode(memoryview(buffer), memoryview(buffer), layout))
        buffer[0] ^= 1
        with pytest.raises(InfraFault, match="the next refit has to be full"):
            apply(memoryview(buffer), layout, unchanged, digests)

    def test_a_patch_of_another_layout(self, made) -> None:
        _, buffer, _, patches = made
        other = layout_of({"w": torch.zeros(4)})
        digest = xxhash.xxh3_128(bytes(buffer[:64])).hexdigest()
        with pytest.raises(InfraFault, match="of another layout"):
            apply(memoryview(buffer), other, patches, [digest])
