"""The `hf` generator against transformers itself, on small random models."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ratchet.generation.hf import HfGenerator
from ratchet.generation.protocol import Completion, Generator, SamplingParams
from ratchet.policy.weights import named_weights
from ratchet.rollouts.group import Tokens
from ratchet.spec.faults import Cancelled, DataFault, InfraFault, SpecError
from ratchet.spec.run_spec import RunSpec

PROMPTS = ["the cat", "a bat ate the oat", "on the mat and the hat was", "x"]
SAMPLED = SamplingParams(max_new_tokens=16, temperature=0.9)

Refitted = Callable[..., HfGenerator]


def generate(
    generator: Generator,
    prompts: Sequence[Tokens],
    params: SamplingParams,
    seeds: Sequence[int] | None = None,
) -> list[Completion]:
    return generator.generate(prompts, seeds or range(len(prompts)), params, lambda: False)


def encoded(generator: Generator, texts: Sequence[str] = PROMPTS) -> list[Tokens]:
    return [generator.encode(text) for text in texts]


@pytest.fixture(params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_greedy_is_what_transformers_generates(
    folder: Path, refitted: Refitted, tokenizer: PreTrainedTokenizerFast
) -> None:
    generator = refitted(folder)
    ours = generate(generator, encoded(generator), SamplingParams(max_new_tokens=16, temperature=0.0))
    model = AutoModelForCausalLM.from_pretrained(folder)
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    theirs = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=False,
        max_new_tokens=16,
    )[:, batch["input_ids"].shape[1] :]
    for completion, row in zip(ours, theirs.tolist(), strict=True):
        assert completion.tokens.tolist() == row[: len(completion.tokens)]
        assert completion.text == tokenizer.decode(row, skip_special_tokens=True)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_a_full_forward(folder: Path, refitted: Refitted, temperature: float) -> None:
    generator = refitted(folder)
    prompts = encoded(generator) * 2
    model = AutoModelForCausalLM.from_pretrained(folder)
    params = SamplingParams(max_new_tokens=16, temperature=temperature)
    for prompt, completion in zip(prompts, generate(generator, prompts, params), strict=True):
        tokens = torch.from_numpy(np.concatenate([prompt, completion.tokens])).long()
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1].double()
        expected = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        expected = expected.gather(-1, tokens[len(prompt) :, None])[:, 0]
        assert completion.logprobs.dtype == np.float32
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=1e-4)


def test_a_row_draws_from_its_own_seed_wherever_it_stands(llama: Path, refitted: Refitted) -> None:
    generator = refitted(llama)
    prompts, seeds = encoded(generator) * 3, [11, 12, 13, 14, 21, 22, 23, 24, 11, 12, 13, 14]
    together = generate(generator, prompts, SAMPLED, seeds)
    order = [5, 3, 11, 0, 8, 2, 7, 9, 1, 10, 4, 6]
    permuted = generate(generator, [prompts[i] for i in order], SAMPLED, [seeds[i] for i in order])
    for place, i in enumerate(order):
        assert permuted[place].tokens.tolist() == together[i].tokens.tolist()
    for i in range(4):
        assert together[i].tokens.tolist() == together[i + 8].tokens.tolist()  # same prompt, same seed
        assert together[i].tokens.tolist() != together[i + 4].tokens.tolist()  # same prompt, another seed
        (alone,) = generate(generator, [prompts[i]], SAMPLED, [seeds[i]])
        assert alone.tokens.tolist() == together[i].tokens.tolist()


def test_the_same_call_gives_the_same_bits(llama: Path, refitted: Refitted) -> None:
    first, second = (generate(g, encoded(g) * 4, SAMPLED) for g in (refitted(llama), refitted(llama)))
    for a, b in zip(first, second, strict=True):
        assert a.tokens.tobytes() == b.tokens.tobytes()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


def test_a_prompt_is_computed_once_for_all_its_samples(llama: Path, refitted: Refitted) -> None:
    generator = refitted(llama)
    short, long = encoded(generator, PROMPTS[:2])
    prompts = [short, long, short, short, long]
    rows: list[int] = []
    embeddings = generator._open().model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _module, inputs, _output: rows.append(len(inputs[0])))
    shared = generate(generator, prompts, SAMPLED)
    hook.remove()
    assert rows[:2] == [2, 5]
    for i, completion in enumerate(shared):
        (unshared,) = generate(generator, [prompts[i]], SAMPLED, [i])
        assert completion.tokens.tolist() == unshared.tokens.tolist()
        np.testing.assert_allclose(completion.logprobs, unshared.logprobs, atol=1e-5)


def test_a_response_ends_with_its_end_token(
    model_folder: Callable[..., Path], refitted: Refitted, llama: Path
) -> None:
    endless = refitted(llama)
    end_tokens = list(range(40))
    generator = refitted(model_folder("llama", end_tokens))
    prompts = encoded(generator) * 6
    params = SamplingParams(max_new_tokens=12)
    reasons: set[str] = set()
    whole = generate(endless, prompts, params)
    for completion, unstopped in zip(generate(generator, prompts, params), whole, strict=True):
        tokens = unstopped.tokens.tolist()
        ends = [i for i, token in enumerate(tokens) if token in end_tokens]
        expected = tokens[: ends[0] + 1] if ends else tokens
        assert completion.tokens.tolist() == expected
        assert completion.finish_reason == ("stop" if ends else "length")
        np.testing.assert_allclose(completion.logprobs, unstopped.logprobs[: len(expected)], atol=1e-5)
        reasons.add(completion.finish_reason)
    assert reasons == {"stop", "length"}


def test_a_response_ends_with_the_token_that_completes_a_stop_string(
    qwen2: Path, refitted: Refitted, tokenizer: PreTrainedTokenizerFast
) -> None:
    generator = refitted(qwen2)
    prompts = encoded(generator) * 6
    params = SamplingParams(max_new_tokens=20, temperature=1.5)
    whole = generate(generator, prompts, params)
    texts = [completion.text for completion in whole]
    # Strings of several characters that really occur, and one that never does.
    stops = (texts[0][5:8], texts[3][6:8], "never to be seen")
    stopped = generate(generator, prompts, SamplingParams(20, 1.5, stop_strings=stops))
    reasons: list[str] = []
    for completion, unstopped in zip(stopped, whole, strict=True):
        tokens = unstopped.tokens.tolist()
        prefixes = [tokenizer.decode(tokens[: n + 1], skip_special_tokens=True) for n in range(len(tokens))]
        hits = [n for n, text in enumerate(prefixes) if any(stop in text for stop in stops)]
        assert completion.tokens.tolist() == (tokens[: hits[0] + 1] if hits else tokens)
        assert completion.finish_reason == ("stop" if hits else unstopped.finish_reason)
        reasons.append(completion.finish_reason)
    assert reasons.count("stop") >= 2
    assert "length" in reasons


def test_cancel_is_heard_between_tokens(llama: Path, refitted: Refitted) -> None:
    generator = refitted(llama)
    forwards: list[int] = []
    generator._open().model.register_forward_hook(lambda *_: forwards.append(1))
    asked = iter([False, False, True])
    with pytest.raises(Cancelled):
        generator.generate(encoded(generator), range(4), SAMPLED, lambda: next(asked))
    assert len(forwards) == 2


def test_nothing_is_generated_without_weights(llama: Path, spec: Callable[..., RunSpec]) -> None:
    generator = HfGenerator(spec())
    with pytest.raises(InfraFault, match="not opened"):
        generator.encode("the")
    generator.open(llama)
    with pytest.raises(InfraFault, match="no weights"):
        generate(generator, encoded(generator), SAMPLED)


def test_a_wrong_refit_is_refused_whole(
    llama: Path, spec: Callable[..., RunSpec], refitted: Refitted
) -> None:
    good = named_weights(AutoModelForCausalLM.from_pretrained(llama))
    without = {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}
    wrong_shape = {name: tensor[:1] if "norm" in name else tensor for name, tensor in good.items()}
    doubled = {name: tensor * 2 for name, tensor in good.items()}
    fresh, loaded = HfGenerator(spec()), refitted(llama)
    fresh.open(llama)
    before = generate(loaded, encoded(loaded), SAMPLED)
    for tensors, complaint in (
        ({**doubled, "extra": torch.zeros(1)}, "unknown.*extra"),
        (without, r"lacks 1 .*model\.norm\.weight"),
        ({**doubled, **wrong_shape}, r"norm.*\(1,\).*\(32,\)"),
        ({**doubled, "model.norm.weight": [1.0]}, r"model\.norm\.weight as list"),
    ):
        for generator in (fresh, loaded):
            with pytest.raises(InfraFault, match=complaint):
                generator.load_weights(tensors)
    with pytest.raises(InfraFault, match="no weights"):
        generate(fresh, encoded(fresh), SAMPLED)
    for a, b in zip(before, generate(loaded, encoded(loaded), SAMPLED), strict=True):
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_refit_makes_the_model_that_from_pretrained_loads(
    folder: Path, refitted: Refitted, precision: str
) -> None:
    generator = refitted(folder, precision)
    ours = generator._open().model
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision))
    assert set(generator.wire_dtypes()) == set(dict(theirs.named_parameters()))
    assert set(generator.wire_dtypes().values()) == {precision}
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


def test_tied_embeddings_travel_once_and_stay_tied(llama: Path, refitted: Refitted) -> None:
    generator = refitted(llama)
    assert "lm_head.weight" not in generator.wire_dtypes()
    model = generator._open().model
    changed = {name: tensor + 0.1 for name, tensor in named_weights(model).items()}
    generator.load_weights(changed)
    assert torch.equal(model.get_output_embeddings().weight, changed["model.embed_tokens.weight"])


def test_edges(llama: Path, refitted: Refitted, tmp_path: Path) -> None:
    generator = refitted(llama)
    assert generate(generator, [], SAMPLED) == []
    one = generate(generator, encoded(generator), SamplingParams(max_new_tokens=1))
    assert [len(completion.tokens) for completion in one] == [1, 1, 1, 1]
    with pytest.raises(DataFault, match="without tokens"):
        generate(generator, [generator.encode("the"), generator.encode("")], SAMPLED)
    with pytest.raises(SpecError, match=r"policy\.model"):
        generator.open(tmp_path)
