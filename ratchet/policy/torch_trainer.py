"""The `torch` trainer: one rank, float32 master weights, AdamW, in split steps."""

import copy
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ratchet.algorithms.logprobs import token_logprobs
from ratchet.algorithms.loss import k3, masked_sum, policy_loss
from ratchet.checkpoints.export import export_hf
from ratchet.policy.batch import Microbatch, Row, collate, group_rows
from ratchet.policy.digest import digest_tensors
from ratchet.policy.loading import load_causal_lm
from ratchet.policy.nested import flatten, map_tensors, mismatches
from ratchet.policy.optimizer import NamedAdamW
from ratchet.policy.precision import resolve
from ratchet.policy.protocol import LoadResult, StepResult
from ratchet.policy.sharing import share_prompts, sharing_obstacle
from ratchet.policy.weights import named_weights
from ratchet.rollouts.group import PromptGroup
from ratchet.sessions.failpoints import failpoint
from ratchet.spec.faults import DataFault, Poisoned, SpecError
from ratchet.spec.run_spec import LossSpec, RunSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    folder: Path
    model: PreTrainedModel
    optimizer: NamedAdamW
    reference: PreTrainedModel | None
    shares_prompts: bool
    """Whether rows of one prompt may be fed as one pack (ratchet.policy.sharing)."""


@dataclass(slots=True)
class _OpenStep:
    """What a step has gathered so far: exact counts, float64 sums."""

    step: int
    rng: Tensor
    tokens: int = 0
    forward_tokens: int = 0
    """Tokens that went through the model: the denominator of what only a forward can know."""
    samples: int = 0
    reward: float = 0.0
    zero_advantage_groups: int = 0
    crossed: int = 0
    """Groups that other weights than these had sampled, in an incarnation whose end they survived."""
    discarded: int = 0
    """Those of them that were too far away to train on."""
    sums: dict[str, Tensor] = field(default_factory=dict)

    def count(self, rows: Sequence[Row]) -> int:
        tokens = sum(row.num_tokens for row in rows)
        self.tokens += tokens
        self.samples += len(rows)
        self.reward += sum(row.sample.reward for row in rows)
        return tokens


class TorchTrainer:
    """PolicyTrainer (ratchet.policy.protocol) in plain PyTorch.

    A step is `begin -> (microbatch | skip)* -> finish | abort`, which `train` drives, or `begin -> add* ->
    finish | abort` whoever has its groups one after the other; every sample of the step goes through exactly
    one of `microbatch` and `skip`. Gradients accumulate as raw sums over tokens,
    and `finish`, the point of no return, divides by the token count of the whole step: the cut into
    microbatches does not show in the result (law 1).

    `dtype` is that of the master weights: float32, or float64 where a test wants exactness.
    """

    def __init__(self, spec: RunSpec, dtype: torch.dtype = torch.float32) -> None:
        self._spec = spec
        self._dtype = dtype
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._autocast = resolve(spec.policy.precision, self._device) == torch.bfloat16
        self._maybe_loaded: _Loaded | None = None
        self._step: _OpenStep | None = None
        self._last_step = 0
        self._poisoned = False

    # --- the protocol

    def open(self, model_folder: Path) -> LoadResult:
        """Load the base model and, if there is a KL penalty, keep a frozen copy of it. Raises SpecError."""
        self._step = self._maybe_loaded = None  # room first: two models at once may not fit
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        model = load_causal_lm(model_folder, self._dtype, self._device)
        reference = copy.deepcopy(model).requires_grad_(False) if self._has_kl else None
        optimizer = NamedAdamW(model, self._spec.policy.optimizer)
        obstacle = sharing_obstacle(model)
        self._maybe_loaded = _Loaded(model_folder, model, optimizer, reference, obstacle is None)
        log.info(
            "trainer: forward and backward in %s on %s (policy.precision: %s), prompts run once per %s",
            str(self._computes_in).removeprefix("torch."),
            self._device,
            self._spec.policy.precision,
            "group" if obstacle is None else f"sample ({obstacle})",
        )
        # Loading, or building a model that nobody built yet, may have drawn numbers: a run starts the same.
        torch.manual_seed(self._spec.seed)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        return LoadResult(num_parameters=num_parameters, model_digest=self.digest())

    def enter(self) -> None:
        """Move model, reference and optimizer to the device."""
        self._move(self._device)

    def leave(self) -> None:
        """Move them to the host's memory, and give the device's back. Between steps."""
        if self._step is not None:
            raise RuntimeError("a step is open: finish or abort it before leaving the device")
        self._move(torch.device("cpu"))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _move(self, device: torch.device) -> None:
        if (loaded := self._maybe_loaded) is None:
            return
        loaded.optimizer.to(device)
        loaded.model.to(device)  # pyright: ignore[reportArgumentType] - the stubs know one overload
        if loaded.reference is not None:
            loaded.reference.to(device)  # pyright: ignore[reportArgumentType]

    def adopt(self, spec: RunSpec) -> None:
        """Take hyperparameters from `spec` from the next step on (see `with_values` for which can change)."""
        self._spec = spec
        self._loaded.optimizer.spec = spec.policy.optimizer

    def train(
        self, step: int, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()
    ) -> StepResult:
        """One optimizer step over `groups`; those whose keys are in `crossed` are of other weights than
        these. Raises DataFault, with nothing changed, if one cannot be trained on or the gradient is not
        finite, and Poisoned if the update failed half-way."""
        self.begin(step)
        try:
            self.add(groups, crossed)
        except BaseException:
            self.abort()
            raise
        return self.finish()

    def _is_far(self, group: PromptGroup) -> bool:
        """Whether the policy has moved further from the one that sampled this group than a correction helps:
        the mean over its tokens of k3, an estimate of KL(sampling policy || policy)."""
        rows, _ = group_rows(group, self._spec.grpo, self._spec.policy.max_total_sequence_length)
        total, tokens = 0.0, 0
        for start in range(0, len(rows), self._spec.policy.train_micro_batch_size):
            batch = self._collate(rows[start : start + self._spec.policy.train_micro_batch_size])
            with torch.no_grad():
                logprobs, _ = self._forward(self._loaded.model, batch)
            total += float(masked_sum(k3(batch.generation_logprobs, logprobs), batch.mask))
            tokens += int(batch.mask.sum())
        return total > self._spec.loss.cross_incarnation_kl_max * tokens

    def digest(self) -> str:
        return digest_tensors(self.weights())

    def weights(self) -> dict[str, Tensor]:
        """The live weights by name, tied ones once (see `named_weights`)."""
        return named_weights(self._loaded.model)

    def export_hf(self, target: Path, weights: Mapping[str, object]) -> None:
        """Write `weights`, the live ones or a snapshot's, as a folder that `from_pretrained` loads."""
        loaded = self._loaded
        tensors = {name: tensor for name, tensor in weights.items() if isinstance(tensor, Tensor)}
        export_hf(loaded.model, loaded.folder, target, tensors)

    def state(self) -> dict[str, object]:
        """A deep copy in CPU memory: `model` {name: tensor}, `optimizer` {name: {step, exp_avg, exp_avg_sq}},
        `scheduler` {step: the last one finished}, `rng` {cpu: state of torch's generator}.

        Raises Poisoned after a failed update: there is nothing worth keeping.
        """
        self._refuse_poisoned()
        return map_tensors(self._live_state(), lambda tensor: tensor.to("cpu", copy=True))

    def state_template(self) -> dict[str, object]:
        """Fresh, uninitialised tensors of the shapes of `state`."""
        return map_tensors(self._live_state(), lambda tensor: torch.empty_like(tensor, device="cpu"))

    def load_state(self, state: Mapping[str, object]) -> None:
        """The inverse of `state`; an open step is dropped and a poisoned trainer is sound again.

        Raises SpecError, with nothing written, if the state is of another model.
        """
        live, given = flatten(self._live_state()), flatten(state)
        if wrong := mismatches(live, given):
            raise SpecError(
                f"policy.model: the saved state is of another model ({len(wrong)} entries are missing, "
                f"unknown or of another shape, {wrong[0]} for one): continue with the model it came from"
            )
        self._step = None
        self._poisoned = True
        for path, value in given.items():
            match path, value:
                case ("rng", "cpu"), Tensor():
                    torch.set_rng_state(value)
                case ("scheduler", "step"), int():
                    self._last_step = value
                case _, Tensor():
                    target = live[path]
                    assert isinstance(target, Tensor)
                    target.copy_(value)
                case _:
                    raise AssertionError(f"a state has no such leaf: {path}")
        self._poisoned = False

    # --- the split step

    def begin(self, step: int) -> None:
        """Open step `step`, counted from 1. One that a dead caller left open is aborted first."""
        self._refuse_poisoned()
        self.abort()
        self._loaded.optimizer.zero_grad()
        self._step = _OpenStep(step=step, rng=torch.get_rng_state())

    def add(self, groups: Sequence[PromptGroup], crossed: Collection[int] = frozenset()) -> None:
        """Take in some of the open step's groups, in their order (see `train` for `crossed`). Raises
        DataFault if one cannot be trained on: the step is to be aborted then."""
        policy, current = self._spec.policy, self._current()
        far = {group.key for group in groups if group.key in crossed and self._is_far(group)}
        judged = [
            group_rows(group, self._spec.grpo, policy.max_total_sequence_length)
            for group in groups
            if group.key not in far
        ]
        current.crossed += sum(group.key in crossed for group in groups)
        current.discarded += len(far)
        active: list[Row] = []
        for rows, has_signal in judged:
            if has_signal or self._has_kl:
                active += rows
            else:
                self.skip(rows)
        for start in range(0, len(active), policy.train_micro_batch_size):
            self.microbatch(active[start : start + policy.train_micro_batch_size])

    def skip(self, rows: Sequence[Row]) -> None:
        """Take in a prompt group without a gradient: no work, but its tokens stay in the denominator."""
        current = self._current()
        current.count(rows)
        current.zero_advantage_groups += 1

    def microbatch(self, rows: Sequence[Row]) -> None:
        """Forward and backward of these rows: adds to the summed gradients."""
        current = self._current()
        current.forward_tokens += current.count(rows)
        batch = self._collate(rows)
        logprobs, entropy = self._forward(self._loaded.model, batch)
        reference_logprobs = None
        if self._loaded.reference is not None:
            with torch.no_grad():
                reference_logprobs, _ = self._forward(self._loaded.reference, batch)
        result = policy_loss(
            logprobs,
            logprobs.detach(),
            batch.generation_logprobs,
            batch.advantages,
            batch.mask,
            self._loss_spec(current),
            reference_logprobs,
        )
        result.loss.backward()
        sums = {"loss": result.loss.detach(), "entropy": masked_sum(entropy, batch.mask), **result.metrics}
        for name, value in sums.items():
            current.sums[name] = current.sums[name] + value if name in current.sums else value
        failpoint("train_step.backward")

    def abort(self) -> None:
        """Close the open step, if there is one, as if it had never begun: zero gradients, RNG as it was."""
        if self._step is not None:
            torch.set_rng_state(self._step.rng)
            self._step = None
            self._loaded.optimizer.zero_grad()

    def finish(self) -> StepResult:
        """Scale, clip and update: the point of no return.

        Raises DataFault, having aborted, if there is no token to divide by or the gradient is not finite.
        Raises Poisoned if the update itself fails; only `load_state` helps then.
        """
        current, optimizer = self._current(), self._loaded.optimizer
        try:
            result = self._result(current)
        except BaseException:
            self.abort()
            raise
        self._poisoned = True
        try:
            optimizer.update(current.step, current.tokens, result.metrics["grad_norm"])
        except Exception as error:
            raise Poisoned(
                f"the update of step {current.step} failed half-way ({type(error).__name__}: {error}): "
                f"restore a checkpoint"
            ) from error
        self._poisoned = False
        self._step = None
        self._last_step = current.step
        return result

    # --- parts

    def _loss_spec(self, current: _OpenStep) -> LossSpec:
        """The spec's; a step with groups of other weights is corrected whatever the spec says."""
        if not current.crossed or self._spec.loss.importance_sampling_correction:
            return self._spec.loss
        return self._spec.loss.model_copy(update={"importance_sampling_correction": True})

    @property
    def _has_kl(self) -> bool:
        return self._spec.loss.reference_policy_kl_penalty > 0.0

    @property
    def _loaded(self) -> _Loaded:
        if self._maybe_loaded is None:
            raise RuntimeError("the trainer has no model yet: open() comes first")
        return self._maybe_loaded

    def _current(self) -> _OpenStep:
        if self._step is None:
            raise RuntimeError("no step is open: begin() comes first")
        return self._step

    def _refuse_poisoned(self) -> None:
        if self._poisoned:
            raise Poisoned("an earlier update of this trainer failed half-way: restore a checkpoint")

    @property
    def _computes_in(self) -> torch.dtype:
        return torch.bfloat16 if self._autocast else self._dtype

    def _collate(self, rows: Sequence[Row]) -> Microbatch:
        loaded = self._loaded
        packs = [[row] for row in rows]
        if loaded.shares_prompts:
            packs = share_prompts(rows, loaded.model.config.hidden_size)
        return collate(packs, self._dtype, self._computes_in).to(self._device)

    def _forward(self, model: PreTrainedModel, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the responses, and entropies, [S, T] each, at the sampling temperature."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits = model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                logits_to_keep=batch.logits_to_keep,
                use_cache=False,
            ).logits
        return token_logprobs(logits, batch.targets, self._spec.generation.temperature, batch.sources)

    def _result(self, current: _OpenStep) -> StepResult:
        if current.tokens == 0:
            raise DataFault(f"step {current.step} has no token to train on: every mask is zero")
        grad_norm = self._loaded.optimizer.summed_grad_norm() / current.tokens
        sums = {name: float(value) for name, value in current.sums.items()}
        loss = sums.pop("loss", 0.0) / current.tokens
        if not (math.isfinite(grad_norm) and math.isfinite(loss)):
            raise DataFault(
                f"step {current.step} has a loss of {loss} and a gradient norm of {grad_norm}: nothing was "
                f"updated; try a lower policy.optimizer.lr"
            )
        metrics = {
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": self._loaded.optimizer.learning_rate(current.step),
            "reward_mean": current.reward / current.samples,
        }
        if current.crossed:
            metrics |= {"cross_incarnation_groups": current.crossed, "discarded_groups": current.discarded}
        metrics |= {name: value / current.forward_tokens for name, value in sums.items()}
        return StepResult(metrics, current.tokens, current.zero_advantage_groups)

    def _live_state(self) -> dict[str, object]:
        return {
            "model": self.weights(),
            "optimizer": self._loaded.optimizer.named_state(),
            "scheduler": {"step": self._last_step},
            "rng": {"cpu": torch.get_rng_state()},
        }
