"""What `auto` becomes, on hardware that is not here, and that trainer and generator go by it."""

import logging

import pytest
import torch

from ratchet.generation.hf import HfGenerator
from ratchet.policy.precision import resolve
from ratchet.policy.torch_trainer import TorchTrainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, torch.float32),
        ({"avx512_f": True, "avx512_bf16": False, "amx_tile": False, "amx_bf16": False}, torch.float32),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_on_a_processor(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve("auto", CPU) == expected


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_on_a_gpu_asks_whether_bfloat16_is_more_than_emulated(monkeypatch, native, expected):
    def supported(including_emulation=True):
        return including_emulation or native

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert resolve("auto", CUDA) == expected


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_a_precision_that_was_named_is_taken(monkeypatch, device, native):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    assert resolve("float32", device) == torch.float32
    assert resolve("bfloat16", device) == torch.bfloat16


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_trains_like_the_precision_it_becomes_and_says_so(
    make_spec, make_groups, model_folder, monkeypatch, caplog, native, expected
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    caplog.set_level(logging.INFO, "ratchet")
    digests = []
    for precision in ("auto", expected):
        trainer = TorchTrainer(make_spec(policy={"precision": precision}))
        trainer.open(model_folder)
        trainer.train(1, make_groups())
        digests.append(trainer.digest())
    assert digests[0] == digests[1]
    assert f"forward and backward in {expected} on cpu (policy.precision: auto)" in caplog.messages[0]


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_decides_what_a_refit_brings_to_generators(
    make_spec, model_folder, monkeypatch, caplog, native, expected
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    caplog.set_level(logging.INFO, "ratchet")
    monkeypatch.setattr("ratchet.generation.hf.AutoTokenizer.from_pretrained", lambda *a, **k: _NoTokenizer)
    generator = HfGenerator(make_spec(generation={"precision": "auto"}))
    generator.open(model_folder)
    assert set(generator.wire_dtypes().values()) == {expected}
    assert f"{expected} on cpu (generation.precision: auto)" in caplog.messages[0]


class _NoTokenizer:
    eos_token_id = 0
