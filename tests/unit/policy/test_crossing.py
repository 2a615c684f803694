"""Groups that survived the weights which sampled them: corrected when they are near, discarded when far."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ratchet.policy.digest import digest_tensors
from ratchet.spec.faults import DataFault

NEAR = 0.05
"""Noise on the logprobs of groups that are near, in nats."""


@pytest.fixture
def near_groups(make_groups, model_folder):
    """Groups whose generation logprobs are the model's own, computed sample by sample, but for a little."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64).eval()
    rng = np.random.default_rng(1)

    def sampled(group):
        samples = []
        for sample in group.samples:
            ids = torch.tensor(np.concatenate([group.prompt, sample.tokens]), dtype=torch.int64)
            with torch.no_grad():
                logits = model(input_ids=ids[None]).logits[0, len(group.prompt) - 1 : -1] / 0.8
            logprobs = logits.log_softmax(-1).gather(-1, ids[len(group.prompt) :, None])[:, 0].numpy()
            noise = rng.normal(0.0, NEAR, len(logprobs))
            samples.append(replace(sample, logprobs=(logprobs + noise).astype(np.float32)))
        return replace(group, samples=tuple(samples))

    return [sampled(group) for group in make_groups()]


def trained(trainer, groups, crossed=frozenset()):
    result = trainer.train(1, groups, crossed)
    return digest_tensors(trainer.weights()), result


def test_near_groups_train_as_they_are_and_are_counted(make_trainer, near_groups):
    plain, _ = trained(make_trainer(), near_groups)
    crossed, result = trained(make_trainer(), near_groups, {0, 3})
    assert crossed == plain
    assert (result.metrics["cross_incarnation_groups"], result.metrics["discarded_groups"]) == (2, 0)


def test_a_crossed_group_is_corrected_though_the_spec_says_no(make_trainer, near_groups):
    off = {"importance_sampling_correction": False}
    corrected, _ = trained(make_trainer(), near_groups)
    uncorrected, _ = trained(make_trainer(loss=off), near_groups)
    crossed, _ = trained(make_trainer(loss=off), near_groups, {2})
    assert crossed == corrected != uncorrected


def test_a_group_that_is_far_is_left_out_as_if_it_were_not_there(make_trainer, make_groups, near_groups):
    groups = [*near_groups[:4], *make_groups()[4:]]  # the last two carry logprobs of nobody
    expected, without = trained(make_trainer(), groups[:4])
    got, result = trained(make_trainer(), groups, {1, 4, 5})
    assert got == expected
    assert result.num_tokens == without.num_tokens
    assert (result.metrics["cross_incarnation_groups"], result.metrics["discarded_groups"]) == (3, 2)


def test_a_step_whose_groups_are_all_far_trains_on_nothing(make_trainer, make_groups):
    trainer = make_trainer()
    before = digest_tensors(trainer.weights())
    with pytest.raises(DataFault, match="no token to train on"):
        trainer.train(1, make_groups(), range(6))
    assert digest_tensors(trainer.weights()) == before
