"""Law 1: loss, gradient norm, updated weights and metrics do not depend on the cut into microbatches.

The reference is a step written with nothing of the trainer's: one sequence at a time, unpadded, from the
definitions, with its own AdamW.
"""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ratchet.checkpoints.state import state_digest
from ratchet.policy.batch import group_rows

KL = {"loss": {"reference_policy_kl_penalty": 0.1, "ratio_clip_max": 0.28}}
CUTS = {"one": 24, "two": 12, "ragged": 7, "N": 1}


def plain_step(folder, spec, groups, step):
    """One step in float64. Returns (metrics, {name: weight})."""
    # transformers computes eager attention's softmax in float32, whatever the model's precision.
    load = partial(
        AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float64, attn_implementation="sdpa"
    )
    model, base = load().eval(), load().eval()
    penalty, temperature = spec.loss.reference_policy_kl_penalty, spec.generation.temperature

    def logprobs_of(net, prompt, tokens):
        ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
        rows = (net(ids).logits[0] / temperature).log_softmax(-1)
        return [rows[len(prompt) - 1 + j, token] for j, token in enumerate(tokens.tolist())], rows

    count, total = 0, 0.0
    sums = dict.fromkeys(["kl", "logprob_error", "importance_weight_mean", "entropy"], 0.0)
    for group in groups:
        rewards = [sample.reward for sample in group.samples]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        for sample in group.samples:
            advantage = (sample.reward - mean) / (deviation + 1e-6)
            mine, rows = logprobs_of(model, group.prompt, sample.tokens)
            with torch.no_grad():
                theirs, _ = logprobs_of(base, group.prompt, sample.tokens)
            for j, kept in enumerate(sample.mask.tolist()):
                if not kept:
                    continue
                lp = mine[j].item()
                weight = min(math.exp(lp - float(sample.logprobs[j])), spec.loss.importance_weight_max)
                q = theirs[j] - mine[j]
                kl = q.exp() - q - 1
                count += 1
                total = total - weight * advantage * (mine[j] - mine[j].detach()).exp() + penalty * kl
                row = rows[len(group.prompt) - 1 + j].detach()
                sums["kl"] += kl.item()
                sums["logprob_error"] += abs(lp - float(sample.logprobs[j]))
                sums["importance_weight_mean"] += weight
                sums["entropy"] += -(row.exp() * row).sum().item()
    # Norms run in float32 in any model: divided before, the gradient would be rounded elsewhere there.
    total.backward()

    parameters = dict(model.named_parameters())
    gradients = {name: p.grad / count for name, p in parameters.items()}
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    optimizer = spec.policy.optimizer
    lr = optimizer.lr * min(1.0, step / optimizer.warmup_steps)
    beta1, beta2 = optimizer.betas
    weights = {}
    for name, p in parameters.items():
        g = gradients[name] * min(1.0, optimizer.max_grad_norm / norm)
        m, v = (1 - beta1) * g, (1 - beta2) * g**2
        direction = (m / (1 - beta1)) / ((v / (1 - beta2)).sqrt() + optimizer.eps)
        weights[name] = (p - lr * optimizer.weight_decay * p - lr * direction).detach()
    metrics = {name: value / count for name, value in sums.items()}
    return {**metrics, "loss": total.item() / count, "grad_norm": norm, "learning_rate": lr}, weights


def assert_weights(got, want, tolerance):
    """Equal names, and per tensor |got - want| <= tolerance * |want| in the Euclidean norm."""
    assert got.keys() == want.keys()
    for name in got:
        difference = (got[name].double() - want[name].double()).norm() / want[name].double().norm()
        assert difference <= tolerance, (name, float(difference))


@pytest.mark.parametrize("sections", [{}, KL], ids=["plain", "kl"])
@pytest.mark.parametrize("cut", CUTS)
def test_law_1_float64_agrees_with_the_plain_step_for_every_cut(
    make_trainer, make_spec, make_groups, model_folder, sections, cut
):
    groups = make_groups(seed=1, constant=(1, 4))
    want_metrics, want_weights = plain_step(model_folder, make_spec(**sections), groups, step=2)
    trainer = make_trainer(torch.float64, **sections, policy=policy(cut))
    result = trainer.train(2, groups)
    # The generator's logprobs are float32 in both, so nothing below is looser than float64 itself.
    skipped = 0 if sections else 2
    assert result.zero_advantage_groups == skipped
    assert result.num_tokens == sum(int(s.mask.sum()) for g in groups for s in g.samples)
    names = ["loss", "grad_norm", "learning_rate"]
    # What only a forward can know is averaged over the groups that had one.
    names += ["kl", "logprob_error", "importance_weight_mean", "entropy"] if sections else []
    for name in names:
        assert result.metrics[name] == pytest.approx(want_metrics[name], rel=1e-11, abs=1e-12), name
    assert_weights(trainer.weights(), want_weights, 1e-11)


def policy(cut):
    return {
        "model": "tiny",
        "train_micro_batch_size": CUTS[cut],
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "warmup_steps": 4, "max_grad_norm": 0.5},
    }


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("sections", [{}, KL], ids=["plain", "kl"])
def test_law_1_cuts_agree_with_each_other(make_trainer, make_groups, sections, dtype, tolerance):
    groups = make_groups(seed=2, constant=(0,))
    results, weights = {}, {}
    for cut in CUTS:
        trainer = make_trainer(dtype, **sections, policy=policy(cut))
        results[cut] = [trainer.train(step, groups) for step in (1, 2)]
        weights[cut] = trainer.weights()
    for cut in CUTS:
        for got, want in zip(results[cut], results["one"], strict=True):
            assert got.num_tokens == want.num_tokens
            assert got.metrics == pytest.approx(want.metrics, rel=tolerance, abs=tolerance)
        assert_weights(weights[cut], weights["one"], tolerance)


@pytest.mark.parametrize("sections", [{}, KL], ids=["plain", "kl"])
def test_law_1_groups_may_come_one_after_the_other_in_any_order(make_trainer, make_groups, sections):
    """Five steps of the split train step, cut at random, against whole batches."""
    whole, split = make_trainer(torch.float64, **sections), make_trainer(torch.float64, **sections)
    chance = random.Random(5)
    for step in range(1, 6):
        groups = make_groups(seed=10 + step, constant=(step % 3,))
        want = whole.train(step, groups)
        chance.shuffle(groups)
        split.begin(step)
        while groups:
            size = chance.randint(1, len(groups))
            split.add(groups[:size])
            split.digest()  # whoever looks at the weights meanwhile sees, and changes, nothing
            del groups[:size]
        got = split.finish()
        assert (got.num_tokens, got.zero_advantage_groups) == (want.num_tokens, want.zero_advantage_groups)
        assert got.metrics == pytest.approx(want.metrics, rel=1e-11, abs=1e-12)
        assert_weights(split.weights(), whole.weights(), 1e-11)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_law_1_an_abort_after_any_portion_leaves_no_bit_changed(make_trainer, make_groups, after):
    trainer, groups = make_trainer(), make_groups(seed=6)
    trainer.train(1, make_groups(seed=5))
    before, rng = trainer.digest(), torch.get_rng_state()
    state = trainer.state()
    trainer.begin(2)
    for group in groups[:after]:
        trainer.add([group])
    trainer.abort()
    assert trainer.digest() == before
    assert torch.equal(torch.get_rng_state(), rng)
    assert state_digest(trainer.state()) == state_digest(state)
    other = make_trainer()
    other.train(1, make_groups(seed=5))
    assert trainer.train(2, groups).metrics == other.train(2, groups).metrics
    assert trainer.digest() == other.digest()


@pytest.mark.parametrize("cut", CUTS)
def test_law_1_the_same_cut_is_bit_equal(make_trainer, make_groups, cut):
    groups = make_groups(seed=3)
    digests, metrics = set(), []
    for _ in range(2):
        trainer = make_trainer(policy=policy(cut))
        metrics.append([trainer.train(step, groups).metrics for step in (1, 2)])
        digests.add(trainer.digest())
    assert len(digests) == 1
    assert metrics[0] == metrics[1]


def test_law_1_an_interleaved_logprob_call_changes_nothing(make_trainer, make_groups):
    groups = make_groups(seed=4)
    plain, interleaved = make_trainer(), make_trainer()
    plain.train(1, groups)
    rows = [group_rows(group, interleaved._spec.grpo, 64)[0] for group in groups]
    interleaved.begin(1)
    size = interleaved._spec.policy.train_micro_batch_size
    flat = [row for group in rows for row in group]
    for start in range(0, len(flat), size):
        with torch.no_grad():
            interleaved._forward(interleaved._loaded.model, interleaved._collate(flat[:3]))
        interleaved.microbatch(flat[start : start + size])
    interleaved.finish()
    assert interleaved.digest() == plain.digest()


@pytest.mark.parametrize("obstacle", [None, "told to"], ids=["shared", "apart"])
def test_padding_keeps_bfloat16_finite_and_close(make_trainer, make_groups, monkeypatch, obstacle):
    """Autocast is not law 1's business, but it must train: rows that are all padding must not breed NaN."""
    monkeypatch.setattr("ratchet.policy.torch_trainer.sharing_obstacle", lambda model: obstacle)
    groups = make_groups(seed=5)
    exact = make_trainer().train(1, groups)
    trainer = make_trainer(policy={**policy("ragged"), "precision": "bfloat16"})
    result = trainer.train(1, groups)
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert {tensor.dtype for tensor in trainer.weights().values()} == {torch.float32}
    assert result.metrics["grad_norm"] == pytest.approx(exact.metrics["grad_norm"], rel=0.1)
    assert result.metrics["entropy"] == pytest.approx(exact.metrics["entropy"], rel=0.05)
    assert result.metrics["entropy"] != exact.metrics["entropy"]
