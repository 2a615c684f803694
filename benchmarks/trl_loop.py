"""TRL's GRPOTrainer over the same prompts, a step at a time. Imported only where TRL is installed."""

import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.plain_loop import ending_tokens
from ratchet.environments.registry import create_environment
from ratchet.policy.precision import resolve
from ratchet.spec.faults import RatchetError
from ratchet.spec.run_spec import RunSpec


class TrlLoop:
    """A trainer that runs in a thread, and stands still between two calls of `step`."""

    def __init__(self, spec: RunSpec, folder: Path, max_steps: int, step_within: float) -> None:
        self._step_within = step_within
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._ending = False
        self._failure: BaseException | None = None
        self._output = tempfile.TemporaryDirectory(prefix="ratchet-trl-")
        self._trainer = _trainer(spec, folder, max_steps, self._output.name, _Gate(self))
        self._thread = threading.Thread(target=self._train, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        self._go.release()
        self._thread.join(self._step_within)
        self._output.cleanup()

    def step(self) -> float:
        """Seconds of the next step. Raises RatchetError if it fails or takes too long."""
        started = time.perf_counter()
        self._go.release()
        if not self._done.acquire(timeout=self._step_within):
            raise RatchetError(f"TRL did not finish a step within {self._step_within:.0f} s")
        if self._failure is not None:
            raise RatchetError(f"TRL failed: {self._failure}") from self._failure
        return time.perf_counter() - started

    def wait_turn(self) -> bool:
        """Called in its thread before a step; false: there is no other."""
        self._go.acquire()
        return not self._ending

    def end_turn(self) -> None:
        self._done.release()

    def _train(self) -> None:
        try:
            self._trainer.train()
        except BaseException as error:
            self._failure = error
            self._done.release()


class _Gate(TrainerCallback):
    def __init__(self, loop: TrlLoop) -> None:
        self._loop = loop

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._loop.wait_turn():
            raise SystemExit  # ends this thread only

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.end_turn()


def _trainer(spec: RunSpec, folder: Path, max_steps: int, output: str, gate: _Gate) -> GRPOTrainer:
    environment = create_environment(spec.environment, spec.seed)
    problems = [environment.train_problem(key) for key in range(max_steps * spec.grpo.num_prompts_per_step)]

    def reward(completions: list[str], key: list[int], **_: Any) -> list[float]:
        return [environment.score(problems[k], text).reward for k, text in zip(key, completions, strict=True)]

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = ending_tokens(tokenizer, spec.generation.stop_strings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    micro, optimizer = spec.policy.train_micro_batch_size, spec.policy.optimizer
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        callbacks=[gate],
        train_dataset=Dataset.from_list(
            [{"prompt": problem.prompt, "key": key} for key, problem in enumerate(problems)]
        ),
        args=GRPOConfig(
            output_dir=output,
            seed=spec.seed,
            max_steps=max_steps,
            shuffle_dataset=False,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=spec.samples_per_step // micro,
            num_generations=spec.grpo.num_generations_per_prompt,
            max_completion_length=spec.generation.max_new_tokens,
            temperature=spec.generation.temperature,
            top_p=spec.generation.top_p,
            top_k=spec.generation.top_k,
            beta=spec.loss.reference_policy_kl_penalty,
            epsilon=spec.loss.ratio_clip_min,
            epsilon_high=spec.loss.ratio_clip_max,
            learning_rate=optimizer.lr,
            adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1],
            adam_epsilon=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            lr_scheduler_type="constant",
            disable_dropout=True,
            gradient_checkpointing=False,
            bf16=resolve(spec.policy.precision, device) == torch.bfloat16,
            use_cpu=device.type == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
