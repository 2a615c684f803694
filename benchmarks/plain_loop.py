"""GRPO as people write it by hand: transformers, PyTorch, one process, nothing durable.

The measure that a step of Ratchet is held against. One model with float32 master weights; all samples of a
step in one `generate`; one forward and backward over the groups whose advantages are not all zero.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet.environments.registry import create_environment
from ratchet.policy.precision import resolve
from ratchet.spec.run_spec import RunSpec

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What a step took and did."""

    generate_s: float
    """Generation and scoring."""
    train_s: float
    groups_trained: int
    reward_mean: float

    @property
    def total_s(self) -> float:
        return self.generate_s + self.train_s


class PlainLoop:
    """Steps over the same prompts, in the same order, as a run of `spec`."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        torch.set_num_threads(spec.runtime.threads or os.cpu_count() or 1)
        torch.manual_seed(spec.seed)
        self.spec = spec
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.to(self.device).eval()  # no dropout
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.environment = create_environment(spec.environment, spec.seed)
        optimizer = spec.policy.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
        self.ends = ending_tokens(self.tokenizer, spec.generation.stop_strings)

    def step(self, index: int) -> PlainStep:
        """Step `index`, counted from 0."""
        started = time.perf_counter()
        width = self.spec.grpo.num_prompts_per_step
        problems = [self.environment.train_problem(key) for key in range(index * width, (index + 1) * width)]
        tokens, attention, responses = self.generate([problem.prompt for problem in problems])
        texts = self.tokenizer.batch_decode(responses, skip_special_tokens=True)
        count = self.spec.grpo.num_generations_per_prompt
        rewards = torch.tensor(
            [self.environment.score(problems[row // count], text).reward for row, text in enumerate(texts)]
        ).view(width, count)
        generated = time.perf_counter()
        active = self.train(tokens, attention, responses, rewards)
        return PlainStep(
            generate_s=generated - started,
            train_s=time.perf_counter() - generated,
            groups_trained=active,
            reward_mean=float(rewards.mean()),
        )

    @torch.no_grad()
    def generate(self, prompts: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Prompts with responses [B, P + T], padded on both sides; what of that is real; responses [B, T]."""
        count, settings = self.spec.grpo.num_generations_per_prompt, self.spec.generation
        repeated = [prompt for prompt in prompts for _ in range(count)]
        batch = self.tokenizer(repeated, padding=True, return_tensors="pt").to(self.device)
        with self.autocast(settings.precision):
            tokens = self.model.generate(
                **batch,
                max_new_tokens=settings.max_new_tokens,
                do_sample=True,
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                eos_token_id=self.ends,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        responses = tokens[:, batch["input_ids"].shape[1] :]
        ended = torch.isin(responses, torch.tensor(self.ends, device=self.device)).long()
        real = (ended.cumsum(dim=1) - ended) == 0  # up to and including the token that ended it
        return tokens, torch.cat([batch["attention_mask"], real.long()], dim=1), responses

    def train(self, tokens: Tensor, attention: Tensor, responses: Tensor, rewards: Tensor) -> int:
        """One optimizer step; returns the number of groups that had a gradient."""
        length, size = responses.shape[1], self.spec.policy.train_micro_batch_size
        advantages = group_advantages(rewards)
        signal = (advantages != 0).any(dim=1)
        rows = signal.repeat_interleave(rewards.shape[1]).nonzero().squeeze(-1).to(self.device)
        advantages = advantages.flatten().to(self.device)
        num_tokens = int(attention[:, -length:].sum())
        positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
        self.optimizer.zero_grad()
        for part in rows.split(size) if len(rows) else ():
            mask = attention[part, -length:]
            with self.autocast(self.spec.policy.precision):
                logits = self.model(
                    input_ids=tokens[part, :-1],
                    attention_mask=attention[part, :-1],
                    position_ids=positions[part, :-1],
                    logits_to_keep=length,
                    use_cache=False,
                ).logits
            scores = torch.log_softmax(logits.float() / self.spec.generation.temperature, dim=-1)
            logprobs = scores.gather(-1, tokens[part, -length:, None]).squeeze(-1)
            ratio = (logprobs - logprobs.detach()).exp()
            clipped = ratio.clamp(1 - self.spec.loss.ratio_clip_min, 1 + self.spec.loss.ratio_clip_max)
            gain = torch.minimum(ratio * advantages[part, None], clipped * advantages[part, None])
            (-(gain * mask).sum() / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.policy.optimizer.max_grad_norm)
        self.optimizer.step()
        return int(signal.sum())

    def autocast(self, precision: str) -> torch.autocast:
        bfloat16 = resolve(precision, self.device) == torch.bfloat16
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bfloat16)


def ending_tokens(tokenizer: Any, stop_strings: Sequence[str]) -> list[int]:
    """The end of the text, and every token that holds a stop string by itself."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    found = [token for token, text in enumerate(texts) if any(stop in text for stop in stop_strings)]
    return sorted({tokenizer.eos_token_id, *found})


def group_advantages(rewards: Tensor) -> Tensor:
    """Reward minus the group's mean, over the group's standard deviation, [groups, samples]."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(constant, 0.0, centred / (rewards.std(dim=1, keepdim=True) + EPSILON))
