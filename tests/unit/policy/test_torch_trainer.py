import copy
import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM

from ratchet.policy.batch import group_rows
from ratchet.policy.digest import digest_tensors
from ratchet.policy.nested import flatten
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.spec.faults import DataFault, Poisoned, SpecError


def assert_same_state(got, want):
    got, want = flatten(got), flatten(want)
    assert got.keys() == want.keys()
    for path, value in want.items():
        if isinstance(value, torch.Tensor):
            assert digest_tensors({"x": got[path]}) == digest_tensors({"x": value}), path
        else:
            assert got[path] == value, path


def rows_of(trainer, groups):
    return [group_rows(group, trainer._spec.grpo, 64)[0] for group in groups]


# --- open


def test_open_counts_and_digests_the_weights_on_disk(make_spec, model_folder):
    result = TorchTrainer(make_spec()).open(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    assert result.num_parameters == sum(p.numel() for p in model.parameters())
    assert result.model_digest == digest_tensors(dict(model.named_parameters()))


def test_tied_weights_are_named_once_and_load_by_name(make_trainer, model_folder):
    weights = make_trainer().weights()
    assert ("lm_head.weight" in weights) == (model_folder.name == "llama")
    other = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    assert set(dict(other.named_parameters())) == set(weights)


@pytest.mark.parametrize(
    "damage", ["no folder", "empty", "not causal", "no weights", "missing weight", "garbage"]
)
def test_open_refuses_what_is_no_causal_language_model(make_spec, model_folders, tmp_path, damage):
    from safetensors.torch import load_file, save_file

    source, folder = model_folders["qwen2"], tmp_path / "model"
    if damage != "no folder":
        folder.mkdir()
    if damage == "not causal":
        (folder / "config.json").write_text(json.dumps({"model_type": "vit", "architectures": ["ViTModel"]}))
    if damage in ("no weights", "missing weight", "garbage"):
        (folder / "config.json").write_text((source / "config.json").read_text())
    if damage == "missing weight":
        tensors = load_file(source / "model.safetensors")
        tensors.pop("model.layers.1.mlp.up_proj.weight")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if damage == "garbage":
        (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(SpecError, match=r"^policy\.model: ") as caught:
        TorchTrainer(make_spec()).open(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_reference_is_loaded_only_for_a_penalty(make_trainer):
    assert make_trainer()._loaded.reference is None
    trainer = make_trainer(loss={"reference_policy_kl_penalty": 0.1})
    assert trainer._loaded.reference is not trainer._loaded.model


# --- groups without a signal


@pytest.mark.parametrize("constant", [(0, 3), (0, 1, 2, 3, 4, 5)], ids=["some", "all"])
@pytest.mark.parametrize("moved", [False, True], ids=["fresh", "with-momentum"])
def test_skipping_constant_groups_equals_training_on_them(make_trainer, make_groups, constant, moved):
    groups = make_groups(seed=6, constant=constant)
    one_cut = {"model": "tiny", "train_micro_batch_size": 24, "optimizer": {"lr": 1e-3, "weight_decay": 0.1}}
    skipping = make_trainer(torch.float64, policy=one_cut)
    training = make_trainer(torch.float64, policy=one_cut)
    if moved:
        for trainer in (skipping, training):
            trainer.train(1, make_groups(seed=7))
    before = skipping.digest()

    result = skipping.train(2, groups)
    training.begin(2)
    for rows in rows_of(training, groups):
        training.microbatch(rows)
    unskipped = training.finish()

    assert result.zero_advantage_groups == len(constant)
    assert unskipped.zero_advantage_groups == 0
    assert result.num_tokens == unskipped.num_tokens
    for name in ("loss", "grad_norm", "reward_mean"):
        assert result.metrics[name] == pytest.approx(unskipped.metrics[name], rel=1e-12, abs=1e-15)
    if len(constant) == 6:
        assert result.metrics["grad_norm"] == 0.0
        assert_same_state(skipping.state(), training.state())
        assert skipping.digest() != before, "weight decay and momentum act in a step without a signal too"
    else:
        for name, weight in training.weights().items():
            difference = (skipping.weights()[name] - weight).norm() / weight.norm()
            assert difference <= 1e-12, name


def test_skipped_groups_are_not_run_and_a_penalty_runs_them(make_trainer, make_groups, monkeypatch):
    groups = make_groups(constant=(0, 1, 2))
    for penalty, expected in ((0.0, 12), (0.1, 24)):
        trainer = make_trainer(loss={"reference_policy_kl_penalty": penalty})
        seen = []
        original = trainer.microbatch
        monkeypatch.setattr(trainer, "microbatch", lambda rows, f=original, s=seen: (s.extend(rows), f(rows)))
        result = trainer.train(1, groups)
        assert len(seen) == expected
        assert result.zero_advantage_groups == (24 - expected) // 4


# --- abort, poison, refusal


def test_abort_leaves_no_trace(make_trainer, make_groups):
    groups = make_groups(seed=8)
    disturbed, undisturbed = make_trainer(), make_trainer()
    for trainer in (disturbed, undisturbed):
        trainer.train(1, groups)
    torch.manual_seed(5)
    before = disturbed.state()
    disturbed.begin(2)
    disturbed.microbatch(rows_of(disturbed, groups)[0])
    torch.rand(3)
    disturbed.abort()
    assert_same_state(disturbed.state(), before)
    assert disturbed.train(2, groups) == undisturbed.train(2, groups)
    assert disturbed.digest() == undisturbed.digest()


def test_begin_aborts_a_step_that_was_left_open(make_trainer, make_groups):
    groups = make_groups(seed=9)
    disturbed, undisturbed = make_trainer(), make_trainer()
    disturbed.begin(1)
    disturbed.microbatch(rows_of(disturbed, groups)[0])
    assert disturbed.train(1, groups) == undisturbed.train(1, groups)
    assert disturbed.digest() == undisturbed.digest()


def test_an_error_in_a_microbatch_leaves_everything_as_it_was(make_trainer, make_groups, monkeypatch):
    groups = make_groups(seed=10)
    trainer = make_trainer()
    before, calls = trainer.state(), []
    original = trainer.microbatch

    def second_fails(rows):
        calls.append(rows)
        if len(calls) == 2:
            torch.rand(1)
            raise OSError("out of memory")
        original(rows)

    monkeypatch.setattr(trainer, "microbatch", second_fails)
    with pytest.raises(OSError, match="out of memory"):
        trainer.train(1, groups)
    assert_same_state(trainer.state(), before)
    trainer.train(1, groups)
    assert trainer.state()["scheduler"] == {"step": 1}


def test_a_failed_update_poisons_until_a_state_is_loaded(make_trainer, make_groups, monkeypatch):
    groups = make_groups(seed=11)
    trainer, undisturbed = make_trainer(), make_trainer()
    saved = trainer.state()
    adamw = trainer._loaded.optimizer._adamw

    def half_an_update():
        with torch.no_grad():
            adamw.param_groups[0]["params"][0].add_(1.0)
        raise RuntimeError("lost in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(adamw, "step", half_an_update)
        with pytest.raises(Poisoned, match=r"update of step 1 failed half-way.*lost in the middle"):
            trainer.train(1, groups)
    for refused in (lambda: trainer.train(1, groups), lambda: trainer.begin(1), trainer.state):
        with pytest.raises(Poisoned, match="restore a checkpoint"):
            refused()
    trainer.load_state(saved)
    assert trainer.train(1, groups) == undisturbed.train(1, groups)
    assert trainer.digest() == undisturbed.digest()


def test_groups_that_cannot_be_trained_on_change_nothing(make_trainer, make_groups):
    trainer, groups = make_trainer(), make_groups()
    before = trainer.state()
    sample = groups[5].samples[0]
    long = dataclasses.replace(
        sample,
        tokens=np.zeros(1100, np.int32),
        logprobs=np.zeros(1100, np.float32),
        mask=np.ones(1100, np.uint8),
    )
    too_long = dataclasses.replace(groups[5], samples=(long, *groups[5].samples[1:]))
    masked = [
        dataclasses.replace(
            group, samples=tuple(dataclasses.replace(s, mask=np.zeros_like(s.mask)) for s in group.samples)
        )
        for group in groups
    ]
    with pytest.raises(DataFault, match=r"policy\.max_total_sequence_length \(1024\)"):
        trainer.train(1, [*groups[:5], too_long])
    with pytest.raises(DataFault, match="every mask is zero"):
        trainer.train(1, masked)
    assert_same_state(trainer.state(), before)


def test_a_gradient_that_is_not_finite_updates_nothing(make_trainer, make_groups):
    trainer = make_trainer()
    trainer.weights()["model.norm.weight"][0] = float("nan")
    before = trainer.state()
    with pytest.raises(DataFault, match="nothing was updated"):
        trainer.train(1, make_groups())
    assert_same_state(trainer.state(), before)


# --- what a step reports


def test_metrics_are_those_of_the_receipt(make_trainer, make_groups):
    groups = make_groups(constant=(2,))
    result = make_trainer(loss={"reference_policy_kl_penalty": 0.1}).train(1, groups)
    assert set(result.metrics) == {
        "loss", "grad_norm", "learning_rate", "reward_mean", "kl", "ratio_mean", "clip_fraction",
        "logprob_error", "importance_weight_mean", "importance_dropped", "entropy",
    }  # fmt: skip
    assert result.metrics["reward_mean"] == pytest.approx(
        np.mean([sample.reward for group in groups for sample in group.samples])
    )
    assert result.metrics["kl"] == pytest.approx(0.0, abs=1e-9), "the policy is still the reference"
    assert result.metrics["ratio_mean"] == pytest.approx(1.0)
    assert result.metrics["clip_fraction"] == 0.0
    # What was never computed is absent: no zero stands in for it.
    assert "entropy" not in make_trainer().train(1, make_groups(constant=tuple(range(6)))).metrics


def test_the_learning_rate_warms_up_linearly(make_trainer, make_groups):
    trainer = make_trainer()
    rates = [trainer.train(step, make_groups()).metrics["learning_rate"] for step in range(1, 7)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_training_raises_the_probability_of_what_was_rewarded(make_trainer, make_groups):
    groups = make_groups(seed=12)
    trainer = make_trainer(loss={"importance_sampling_correction": False})
    losses = []
    for step in range(1, 16):
        trainer.train(step, groups)
        losses.append(weighted_logprob(trainer, groups))
    assert losses[-1] > losses[0] + 0.1


def weighted_logprob(trainer, groups):
    """Mean over all tokens of advantage x log-probability: what the policy gradient climbs."""
    rows = [row for group in rows_of(trainer, groups) for row in group]
    batch = trainer._collate(rows)
    with torch.no_grad():
        logprobs, _ = trainer._forward(trainer._loaded.model, batch)
    return float((logprobs * batch.advantages[:, None])[batch.mask].mean())


# --- state


@pytest.mark.parametrize("steps_before", [0, 2])
def test_state_survives_a_distributed_checkpoint_and_training_goes_on_bit_identically(
    make_trainer, make_groups, tmp_path, steps_before
):
    torch.manual_seed(21)
    original, restored = make_trainer(), make_trainer()
    for step in range(1, steps_before + 1):
        original.train(step, make_groups(seed=step))
    torch.rand(5)
    state = original.state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is one process, which is what no_dist says
        dcp.save(copy.deepcopy(state), checkpoint_id=tmp_path / "state", no_dist=True)
        template = restored.state_template()
        dcp.load(template, checkpoint_id=tmp_path / "state", no_dist=True)
    torch.manual_seed(99)
    restored.load_state(template)
    assert_same_state(restored.state(), state)
    assert restored.state()["scheduler"] == {"step": steps_before}

    for step in range(steps_before + 1, steps_before + 3):
        assert restored.train(step, make_groups(seed=step)) == original.train(step, make_groups(seed=step))
    assert restored.digest() == original.digest()
    assert_same_state(restored.state(), original.state())


def test_the_optimizer_state_goes_by_parameter_name(make_trainer, make_groups):
    trainer = make_trainer()
    trainer.train(1, make_groups())
    state = trainer.state()
    assert state["optimizer"].keys() == state["model"].keys()
    for name, moments in state["optimizer"].items():
        assert moments.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert moments["step"].item() == 1.0
        assert moments["exp_avg"].shape == state["model"][name].shape


def test_a_state_is_a_deep_copy(make_trainer, make_groups):
    trainer = make_trainer()
    state = trainer.state()
    frozen = copy.deepcopy(state)
    trainer.train(1, make_groups())
    assert_same_state(state, frozen)


def test_a_state_of_another_model_is_refused_before_anything_is_written(make_trainer):
    trainer = make_trainer()
    before = trainer.state()
    for change in ("missing", "unknown", "shape"):
        other = trainer.state()
        other["model"] = {name: tensor + 1 for name, tensor in other["model"].items()}
        if change == "missing":
            del other["model"]["model.norm.weight"]
        if change == "unknown":
            other["model"]["model.extra.weight"] = torch.zeros(3)
        if change == "shape":
            other["model"]["model.norm.weight"] = torch.zeros(3)
        with pytest.raises(SpecError, match=r"model\.model\.(norm|extra)\.weight"):
            trainer.load_state(other)
    assert_same_state(trainer.state(), before)


def test_the_base_model_stays_the_reference_after_a_restore(make_trainer, make_groups):
    sections = {"loss": {"reference_policy_kl_penalty": 0.1}}
    original, restored = make_trainer(**sections), make_trainer(**sections)
    for step in (1, 2):
        original.train(step, make_groups(seed=step))
    restored.load_state(original.state())
    got = restored.train(3, make_groups(seed=3))
    assert got.metrics["kl"] > 1e-6
    assert got == original.train(3, make_groups(seed=3))


def test_leaving_its_device_between_steps_changes_nothing(make_trainer, make_groups) -> None:
    stays, moves = make_trainer(), make_trainer()
    for step in (1, 2):
        groups = make_groups(seed=step)
        moves.leave()
        assert moves.digest() == stays.digest(), "it can be staged and saved where it is"
        moves.enter()
        assert moves.train(step, groups) == stays.train(step, groups)
    moves.leave()
    assert moves.digest() == stays.digest()


def test_it_does_not_leave_within_a_step(make_trainer) -> None:
    trainer = make_trainer()
    trainer.begin(1)
    with pytest.raises(RuntimeError, match="finish or abort it"):
        trainer.leave()
    trainer.abort()
    trainer.leave()
