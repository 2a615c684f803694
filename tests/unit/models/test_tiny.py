"""The tiny model: built the same every time, readable by transformers, and only half able to add."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.environments.arithmetic import is_heldout
from ratchet.models import tiny
from ratchet.models.tiny import build_tiny

TEXT = '12 + 34 = 46\n\n 7*8-5=51  \n(a) What\'s "it"?\n'


def build(folder: Path, threads: int, sft_steps: int) -> dict[str, bytes]:
    """Files of a build made by a caller with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        build_tiny(folder, sft_steps)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_two_builds_are_bit_equal_whatever_the_caller_does(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build(tmp_path / "first", threads=1, sft_steps=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert build(tmp_path / "second", threads=2, sft_steps=3) == first
    assert (
        build(tmp_path / "third", threads=1, sft_steps=4)["model.safetensors"] != first["model.safetensors"]
    )


def test_transformers_loads_it(tmp_path: Path) -> None:
    build_tiny(tmp_path, sft_steps=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert 500_000 < sum(p.numel() for p in model.parameters()) < 700_000
    tokens = tokenizer(TEXT)["input_ids"]
    assert len(tokens) == len(TEXT)
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.decode([*tokens, tokenizer.eos_token_id], skip_special_tokens=True) == TEXT
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_training_never_sees_a_heldout_problem() -> None:
    tokenizer = tiny.char_tokenizer()
    tokens, labels = tiny._encode_problems(tokenizer)
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert len(set(texts)) == len(texts)
    assert 7000 < len(texts) < 8100
    for text, row in zip(texts, labels, strict=True):
        question, answer = text.split("=")
        a, b = map(int, question.split("+"))
        assert not is_heldout(a, b, "+")
        assert answer == f"{a + b}\n"
        assert tokenizer.decode(row[row >= 0]) == f"{answer}<eos>"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_whole_build_leaves_something_to_learn(models: Path) -> None:
    (folder,) = models.glob("tiny-*[0-9a-f]")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    operands = tiny.OPERANDS
    problems = [(a, b) for a in operands for b in operands if is_heldout(a, b, "+")]
    prompts = tokenizer([f"{a}+{b}=" for a, b in problems], return_tensors="pt")
    torch.manual_seed(0)
    accuracy = {}
    for name, sampling in (("greedy", {"do_sample": False}), ("sampled", {"do_sample": True, "top_k": 0})):
        output = model.generate(**prompts, max_new_tokens=5, **sampling)[:, prompts["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(output, skip_special_tokens=True)
        right = [text == f"{a + b}\n" for text, (a, b) in zip(texts, problems, strict=True)]
        accuracy[name] = sum(right) / len(right)
    # Wide: another processor rounds differently, and what was learnt at a given step differs with it.
    assert 0.4 < accuracy["greedy"] < 0.8
    assert 0.3 < accuracy["sampled"] < 0.6
