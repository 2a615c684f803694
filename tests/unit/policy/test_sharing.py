"""Rows that share a pack, and with it their prompt, train as if each were fed by itself."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ratchet.policy import sharing
from ratchet.policy.batch import Row, fed_shape, group_rows
from ratchet.policy.sharing import ARCHITECTURES, share_prompts, sharing_obstacle
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.rollouts.group import Sample

SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
OBSTACLES = [
    ("mistral", {"sliding_window": 4}, "its attention slides"),
    ("qwen2", SLIDING, "its attention slides"),
    ("gemma2", {"sliding_window": 4, "head_dim": 8}, "gemma2 is not known to keep samples apart"),
]


@pytest.fixture
def make_model(tmp_path):
    """A random model of that architecture, in a folder."""

    def make(model_type, **config):
        shape = {
            "vocab_size": 61,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 4,  # SmolLM3 leaves out position embeddings in every fourth
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.2,
            "pad_token_id": 0,
            "sliding_window": None,
        }
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**shape, **config}))
        model.save_pretrained(tmp_path / model_type)
        return tmp_path / model_type

    return make


@pytest.fixture
def open_trainer(make_spec):
    def make(folder, dtype=torch.float64, **sections):
        trainer = TorchTrainer(make_spec(**sections), dtype)
        trainer.open(folder)
        return trainer

    return make


def rows_of(trainer, groups):
    return [row for group in groups for row in group_rows(group, trainer._spec.grpo, 64)[0]]


def logprobs_of(trainer, rows):
    """Per sample, as the trainer computes them."""
    with torch.no_grad():
        logprobs, _ = trainer._forward(trainer._loaded.model, trainer._collate(rows))
    return [values[: len(row.sample.tokens)] for values, row in zip(logprobs, rows, strict=True)]


def logprobs_alone(trainer, row):
    """Of one sequence, without padding or mask."""
    tokens = row.sample.tokens.tolist()
    with torch.no_grad():
        logits = trainer._loaded.model(torch.tensor([[*row.prompt.tolist(), *tokens]])).logits[0]
    predictions = (logits / trainer._spec.generation.temperature).log_softmax(-1)
    return predictions[range(len(row.prompt) - 1, len(row.prompt) - 1 + len(tokens)), tokens]


def assert_close(got, want):
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def with_other_tokens(rows, changed):
    sample = rows[changed].sample
    other = dataclasses.replace(sample, tokens=(sample.tokens + 1) % 61)
    return [dataclasses.replace(row, sample=other) if i == changed else row for i, row in enumerate(rows)]


# --- what the model makes of a pack


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_a_sample_sees_its_prompt_and_itself_and_no_other_sample(
    make_model, open_trainer, make_groups, model_type
):
    trainer = open_trainer(make_model(model_type))
    rows = rows_of(trainer, make_groups(seed=1))
    assert trainer._collate(rows).input_ids.shape[0] == 6, "a pack for each group"
    before = logprobs_of(trainer, rows)
    assert_close(before, [logprobs_alone(trainer, row) for row in rows])

    after = logprobs_of(trainer, with_other_tokens(rows, changed=1))
    for i in range(len(rows)):
        assert torch.equal(before[i], after[i]) == (i != 1), i

    prompt = (rows[0].prompt + 1) % 61
    reworded = [dataclasses.replace(row, prompt=prompt) for row in rows[:4]]
    for i, values in enumerate(logprobs_of(trainer, [*reworded, *rows[4:]])):
        assert torch.equal(before[i], values) == (i >= 4), i


@pytest.mark.parametrize(("model_type", "config", "reason"), OBSTACLES)
def test_other_models_are_fed_row_by_row_and_the_log_says_why(
    make_model, open_trainer, make_groups, caplog, model_type, config, reason
):
    caplog.set_level(logging.INFO, "ratchet")
    trainer = open_trainer(make_model(model_type, **config))
    rows = rows_of(trainer, make_groups(seed=1))
    assert trainer._collate(rows).input_ids.shape[0] == len(rows)
    assert_close(logprobs_of(trainer, rows), [logprobs_alone(trainer, row) for row in rows])
    assert caplog.messages[-1].endswith(f"prompts run once per sample ({reason})")


def test_another_attention_than_sdpa_is_an_obstacle(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    assert sharing_obstacle(model) == "eager attention may not honour the mask"
    model.set_attn_implementation("sdpa")
    assert sharing_obstacle(model) is None


# --- what a step makes of it


@pytest.mark.parametrize(
    "sections", [{}, {"loss": {"reference_policy_kl_penalty": 0.1}}], ids=["plain", "kl"]
)
@pytest.mark.parametrize("micro_batch", [24, 12, 7, 3])
def test_law_1_a_step_does_not_depend_on_packing(
    open_trainer, model_folder, make_groups, monkeypatch, sections, micro_batch
):
    groups = make_groups(seed=2, constant=(1, 4))
    optimizer = {"lr": 1e-3, "weight_decay": 0.1, "warmup_steps": 4, "max_grad_norm": 0.5}
    sections = {**sections, "policy": {"train_micro_batch_size": micro_batch, "optimizer": optimizer}}
    shared = open_trainer(model_folder, **sections)
    monkeypatch.setattr("ratchet.policy.torch_trainer.sharing_obstacle", lambda model: "told to")
    apart = open_trainer(model_folder, **sections)
    fed = {trainer: tokens_fed(trainer) for trainer in (shared, apart)}
    for step in (1, 2):
        got, want = shared.train(step, groups), apart.train(step, groups)
        assert got.num_tokens == want.num_tokens
        assert got.zero_advantage_groups == want.zero_advantage_groups
        assert got.metrics == pytest.approx(want.metrics, rel=1e-12, abs=1e-12)
    for name, weight in apart.weights().items():
        assert (shared.weights()[name] - weight).norm() <= 1e-12 * weight.norm(), name
    assert sum(fed[shared]) < 0.8 * sum(fed[apart])


def tokens_fed(trainer):
    """Grows by the tokens of every forward to come."""
    fed = []
    trainer._loaded.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return fed


# --- when it pays


def prompt_group(prompt, responses):
    """Rows of one group, of that many tokens each."""
    tokens = np.zeros(prompt, np.int32)
    rows = []
    for seed, length in enumerate(responses):
        zeros, ones = np.zeros(length, np.float32), np.ones(length, np.uint8)
        sample = Sample(ones.astype(np.int32), zeros, ones, "stop", "", 0.0, {}, False, seed)
        rows.append(Row(tokens, sample, 1.0))
    return rows


def test_a_long_prompt_is_run_once_for_all_its_short_responses():
    groups = [prompt_group(25, [5] * 8) for _ in range(12)]
    packs = share_prompts([row for group in groups for row in group], hidden_size=576)
    assert packs == groups
    assert fed_shape(packs) == (12, 25 + 8 * 4)


def test_a_cut_through_a_group_runs_its_prompt_again():
    first, second = prompt_group(25, [5, 2, 3]), prompt_group(20, [5, 5, 1, 4])
    assert share_prompts([*first[2:], *second[:2]], hidden_size=576) == [first[2:], second[:2]]
    assert share_prompts(second[2:], hidden_size=576) == [second[2:]]


@pytest.mark.parametrize("hidden_size", [64, 576])
def test_long_responses_to_a_short_prompt_stay_apart(hidden_size):
    rows = prompt_group(25, [500] * 8)
    assert share_prompts(rows, hidden_size) == [[row] for row in rows]


def test_the_mask_has_a_bound(monkeypatch):
    rows = prompt_group(500, [20] * 4)
    length = 500 + 4 * 19
    assert fed_shape([rows]) == (1, length)
    monkeypatch.setattr(sharing, "MAX_MASK_ELEMENTS", length * length)
    assert share_prompts(rows, hidden_size=576) == [rows]
    monkeypatch.setattr(sharing, "MAX_MASK_ELEMENTS", length * length - 1)
    assert share_prompts(rows, hidden_size=576) == [[row] for row in rows]
