"""A trainer that trains nothing, for `mode: generation_benchmark`."""

from collections.abc import Collection, Sequence

from ratchet.policy.batch import group_rows
from ratchet.policy.protocol import StepResult
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.rollouts.group import PromptGroup


class IdleTrainer(TorchTrainer):
    """Takes groups in, counts them as the torch trainer does, and leaves the weights as they are: steps,
    receipts and metrics have the shapes of a training run, and take no time."""

    def add(self, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()) -> None:
        current = self._current()
        current.crossed += sum(group.key in crossed for group in groups)
        for group in groups:
            rows, has_signal = group_rows(group, self._spec.grpo, self._spec.policy.max_total_sequence_length)
            current.count(rows)
            current.zero_advantage_groups += not has_signal

    def finish(self) -> StepResult:
        current = self._current()
        self._step, self._last_step = None, current.step
        metrics = {
            "loss": 0.0,
            "grad_norm": 0.0,
            "learning_rate": 0.0,
            "reward_mean": current.reward / max(1, current.samples),
        }
        return StepResult(metrics, current.tokens, current.zero_advantage_groups)
