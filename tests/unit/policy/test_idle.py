"""`mode: generation_benchmark`: everything of a step but the training."""

import pytest

from ratchet.policy.idle import IdleTrainer
from ratchet.policy.registry import create_trainer


@pytest.fixture
def idle(make_spec, model_folder) -> IdleTrainer:
    trainer = create_trainer(make_spec().model_copy(update={"mode": "generation_benchmark"}))
    trainer.open(model_folder)
    return trainer


def test_nothing_is_trained_and_everything_is_counted(idle, make_trainer, make_groups) -> None:
    groups, before = make_groups(seed=1, constant=(1,)), idle.digest()
    got, trained = idle.train(1, groups), make_trainer().train(1, groups)
    assert idle.digest() == before
    assert (got.num_tokens, got.zero_advantage_groups) == (trained.num_tokens, trained.zero_advantage_groups)
    assert got.metrics.keys() <= trained.metrics.keys()
    assert got.metrics["reward_mean"] == pytest.approx(trained.metrics["reward_mean"], rel=1e-12)
    assert got.metrics["grad_norm"] == 0.0


def test_it_can_be_saved_like_any_other(idle, make_groups, make_trainer) -> None:
    idle.train(1, make_groups())
    other = make_trainer()
    other.load_state(idle.state())
    assert other.digest() == idle.digest()
