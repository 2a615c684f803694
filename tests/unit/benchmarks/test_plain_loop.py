"""The plain loop does the same work as Ratchet's engines, so that the two may be compared."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.plain_loop import PlainLoop, ending_tokens, group_advantages
from ratchet.models.tiny import build_tiny
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec

PROMPTS = ["12+34=", "5+6=", "77+8="]
SAMPLES = 4


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[PlainLoop]:
    spec = RunSpec.model_validate(
        {
            "name": "unit",
            "policy": {
                "model": "tiny",
                "train_micro_batch_size": 3,
                # The first step of AdamW is a sign, but for this epsilon, with which it is the gradient.
                "optimizer": {"lr": 1.0, "eps": 1.0, "max_grad_norm": 0.01},
            },
            "generation": {"max_new_tokens": 12, "stop_strings": ["\n"]},
            "grpo": {"num_prompts_per_step": 3, "num_generations_per_prompt": SAMPLES, "max_num_steps": 1},
            "loss": {"importance_sampling_correction": False},
            "environment": {"name": "arithmetic"},
            "runtime": {"threads": 1},
        }
    )
    build_tiny(tmp_path / "model", sft_steps=0)
    threads = torch.get_num_threads()
    yield PlainLoop(spec, tmp_path / "model")
    torch.set_num_threads(threads)


def test_advantages_are_standard_scores_and_constant_groups_are_exact_zeros() -> None:
    rewards = np.array([[0.0, 1.0, 1.0, 0.5], [0.1, 0.1, 0.1, 0.1]])
    got = group_advantages(torch.from_numpy(rewards)).numpy()
    expected = (rewards[0] - rewards[0].mean()) / (rewards[0].std(ddof=1) + 1e-6)
    np.testing.assert_allclose(got[0], expected, rtol=1e-12)
    assert (got[1] == 0.0).all()


def test_a_response_ends_with_its_stop_string(loop: PlainLoop) -> None:
    ends = ending_tokens(loop.tokenizer, ["\n"])
    assert [loop.tokenizer.decode(end) for end in ends] == ["<eos>", "\n"]
    _, attention, responses = loop.generate(PROMPTS)
    real = attention[:, -responses.shape[1] :].sum(dim=1).tolist()
    for row, length in zip(responses.tolist(), real, strict=True):
        assert not set(row[: length - 1]) & set(ends)
        assert row[length - 1] in ends or length == len(row)
    assert min(real) < max(real)


def test_it_makes_the_same_update_as_the_trainer(loop: PlainLoop, tmp_path: Path) -> None:
    tokens, attention, responses = loop.generate(PROMPTS)
    rewards = torch.tensor([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    trainer = TorchTrainer(loop.spec)
    trainer.open(tmp_path / "model")
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}

    result = trainer.train(1, _groups(tokens, attention, responses.shape[1], rewards))
    assert loop.train(tokens, attention, responses, rewards) == 2
    assert result.zero_advantage_groups == 1
    assert result.metrics["grad_norm"] > loop.spec.policy.optimizer.max_grad_norm  # the clip is part of it

    plain = dict(loop.model.named_parameters())
    for name, tensor in trainer.weights().items():
        torch.testing.assert_close(plain[name] - before[name], tensor - before[name], rtol=1e-2, atol=1e-7)


def test_a_step_without_any_signal_changes_nothing(loop: PlainLoop) -> None:
    before = {name: tensor.detach().clone() for name, tensor in loop.model.named_parameters()}
    assert loop.train(*loop.generate(PROMPTS), torch.ones(len(PROMPTS), SAMPLES)) == 0
    for name, tensor in loop.model.named_parameters():
        assert torch.equal(tensor, before[name])


def _groups(
    tokens: torch.Tensor, attention: torch.Tensor, length: int, rewards: torch.Tensor
) -> list[PromptGroup]:
    """The rows as a journal would hold them."""
    version = WeightVersion(incarnation=1, step=0, digest="0" * 32)
    rows = [row[real.bool()].numpy().astype(np.int32) for row, real in zip(tokens, attention, strict=True)]
    lengths = attention[:, -length:].sum(dim=1).tolist()

    def sample(row: int) -> Sample:
        response = rows[row][-lengths[row] :]
        return Sample(
            tokens=response,
            logprobs=np.zeros(len(response), dtype=np.float32),
            mask=np.ones(len(response), dtype=np.uint8),
            finish_reason="stop",
            text="",
            reward=float(rewards.flatten()[row]),
            rewards={},
            correct=False,
            seed=row,
        )

    return [
        PromptGroup(
            key=key,
            incarnation=1,
            problem_id=str(key),
            prompt=rows[key * SAMPLES][: -lengths[key * SAMPLES]],
            version_start=version,
            version_end=version,
            samples=tuple(sample(key * SAMPLES + index) for index in range(SAMPLES)),
        )
        for key in range(len(rewards))
    ]
