"""The staged core: where tensors lie, that their bits arrive, and what is refused."""

import pytest
import torch

from ratchet.refit import staging
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.staging import ALIGNMENT, plan, receive, stage
from ratchet.spec.faults import InfraFault
from ratchet.spec.ids import WeightVersion

VERSION = WeightVersion(incarnation=1, step=3, digest="0" * 32)


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    made = {f"layers.{i}.weight": torch.randn(i % 5 + 1, 33) for i in range(40)}
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42, 3.4e38])
    return made | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "special": special}


def staged(
    tensors: dict[str, torch.Tensor], dtypes: dict[str, str], fill: int = 0
) -> tuple[bytearray, RefitManifest]:
    layout = plan(dtypes, {name: tensor.shape for name, tensor in tensors.items()})
    buffer = bytearray([fill]) * layout.num_bytes
    digests = stage(tensors, layout, memoryview(buffer))
    manifest = RefitManifest(
        version=VERSION, mover="test", segment="ratchet-test", layout=layout, bucket_digests=digests
    )
    return buffer, RefitManifest.model_validate_json(manifest.model_dump_json())


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "BUCKET_BYTES", 1000)


def test_tensors_are_aligned_do_not_overlap_and_fill_their_buckets() -> None:
    tensors = weights()
    layout = plan(dict.fromkeys(tensors, "bfloat16"), {name: t.shape for name, t in tensors.items()})
    assert [entry.name for entry in layout.entries] == sorted(tensors)
    end = 0
    for entry in layout.entries:
        assert entry.offset % ALIGNMENT == 0
        assert entry.offset >= end
        end = entry.offset + entry.num_bytes
        bucket = layout.buckets[entry.bucket]
        assert bucket.offset <= entry.offset
        assert end <= bucket.offset + bucket.num_bytes
    assert len(layout.buckets) > 3
    offset = 0
    for bucket in layout.buckets:
        assert bucket.offset == offset
        offset += bucket.num_bytes
    assert end <= offset == layout.num_bytes < end + ALIGNMENT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_arrives_is_the_cast_of_what_was_sent_bit_for_bit(dtype: str) -> None:
    tensors = weights()
    buffer, manifest = staged(tensors, dict.fromkeys(tensors, dtype))
    received = receive(memoryview(buffer), manifest)
    assert received.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.to(getattr(torch, dtype))
        assert received[name].dtype == expected.dtype
        assert received[name].shape == expected.shape
        bits = torch.int32 if dtype == "float32" else torch.int16
        assert torch.equal(received[name].view(bits), expected.view(bits)), name


def test_each_tensor_travels_in_its_own_dtype_from_any_layout_in_memory() -> None:
    tensors = {"a": torch.randn(3, 5).t(), "b": torch.randn(4, 4)[::2], "c": torch.randn(2).requires_grad_()}
    buffer, manifest = staged(tensors, {"a": "float32", "b": "bfloat16", "c": "float16"})
    received = receive(memoryview(buffer), manifest)
    assert torch.equal(received["a"], tensors["a"])
    assert torch.equal(received["b"], tensors["b"].bfloat16())
    assert torch.equal(received["c"], tensors["c"].detach().half())


def test_tensors_are_views_of_the_buffer() -> None:
    buffer, manifest = staged({"a": torch.zeros(4)}, {"a": "float32"})
    received = receive(memoryview(buffer), manifest)["a"]
    buffer[manifest.layout.entries[0].offset + 3] = 0x40
    assert received[0] == 2.0


def test_the_digest_depends_on_the_bits_alone() -> None:
    tensors = weights()
    dtypes = dict.fromkeys(tensors, "bfloat16")
    clean = staged(tensors, dtypes)[1].digest
    reordered = dict(reversed(tensors.items()))
    assert staged(reordered, dtypes, fill=0xAB)[1].digest == clean  # leftovers in padding do not count
    tensors["scalar"] += 1
    assert staged(tensors, dtypes)[1].digest != clean


def test_every_flipped_byte_is_refused_with_the_name_of_its_tensor() -> None:
    tensors = {"a": torch.randn(5), "b": torch.randn(300), "c": torch.randn(7)}
    buffer, manifest = staged(tensors, dict.fromkeys(tensors, "float32"))
    for entry in manifest.layout.entries:
        first = next(e.name for e in manifest.layout.entries if e.bucket == entry.bucket)
        for position in range(entry.offset, entry.offset + entry.num_bytes, 13):
            buffer[position] ^= 1
            with pytest.raises(
                InfraFault, match=rf"bucket {entry.bucket} of ratchet-test \({first}.*stage it again"
            ):
                receive(memoryview(buffer), manifest)
            buffer[position] ^= 1
    receive(memoryview(buffer), manifest)


def test_missing_and_unknown_names_are_refused() -> None:
    tensors = {"a": torch.ones(1), "b": torch.ones(1)}
    with pytest.raises(InfraFault, match="trainer does not have: lm_head and 1 more"):
        staged(tensors, {"a": "float32", "b": "float32", "lm_head": "float32", "norm": "float32"})
    with pytest.raises(InfraFault, match="no generator takes: b"):
        staged(tensors, {"a": "float32"})
    with pytest.raises(InfraFault, match="a cannot travel as int7; allowed are float32"):
        staged({"a": torch.ones(1)}, {"a": "int7"})
