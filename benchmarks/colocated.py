"""What it saves, and costs, that trainer and generator take turns on one GPU: `placement.kind: colocated`.

The same steps (rollouts, an update, a refit) by the same engines, first beside each other and then in turns,
with a random model of the size that is asked for. A GPU's memory is what is measured, so it needs one.
"""

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.report import Report, arguments
from ratchet.generation.hf import HfGenerator
from ratchet.generation.protocol import Completion, SamplingParams
from ratchet.models.prepare import prepare_model
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.rollouts.group import PromptGroup, Sample, Tokens
from ratchet.sessions.turns import Turns
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.loading import load_spec
from ratchet.spec.run_spec import RunSpec

RECIPE = Path(__file__).parent.parent / "recipes" / "tiny-addition.yaml"
STEPS, QUICK_STEPS = 8, 3
WARM_UP = 1
"""Steps that do not count: the first one allocates."""
GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Measured:
    parameters: int
    peak_gib: float
    """Of the GPU's memory, at any time."""
    step_s: float
    moving_s: float
    """Of that: engines moving in and out."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=2048)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures the memory of a GPU, and there is none")
    report, steps = Report(options.json_only), QUICK_STEPS if options.quick else STEPS
    overrides = [f"{section}.precision=bfloat16" for section in ("policy", "generation")]
    spec = load_spec(RECIPE, [*overrides, "policy.train_micro_batch_size=16"])
    with tempfile.TemporaryDirectory() as root:
        model = grown(prepare_model("tiny", Home(root)), Path(root) / "model", options.layers, options.hidden)
        split, colocated = (measure(spec, model, lock, steps) for lock in (None, Path(root) / "turn"))
    gpu = torch.cuda.get_device_name()
    report.publish(
        f"{split.parameters / 1e9:.2f} billion parameters on {gpu}",
        ["", "peak GiB", "step s", "moving s"],
        [
            [name, f"{each.peak_gib:.2f}", f"{each.step_s:.2f}", f"{each.moving_s:.2f}"]
            for name, each in (("split", split), ("colocated", colocated))
        ],
        {
            "benchmark": "colocated",
            "gpu": gpu,
            "parameters": split.parameters,
            "peak_gib_split": round(split.peak_gib, 3),
            "peak_gib_colocated": round(colocated.peak_gib, 3),
            "peak_ratio": round(colocated.peak_gib / split.peak_gib, 3),
            "step_s_split": round(split.step_s, 3),
            "step_s_colocated": round(colocated.step_s, 3),
            "moving_s": round(colocated.moving_s, 3),
        },
    )


def grown(small: Path, target: Path, layers: int, hidden: int) -> Path:
    """A random model of that size, with the tokenizer of a small one."""
    shutil.copytree(small, target)
    config = AutoConfig.from_pretrained(target)
    heads = hidden // 64
    for name, value in {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 64,
    }.items():
        setattr(config, name, value)
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * layers
    AutoModelForCausalLM.from_config(config).save_pretrained(target)
    return target


def measure(spec: RunSpec, model: Path, lock: Path | None, steps: int) -> Measured:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer, generator = TorchTrainer(spec), HfGenerator(spec)
    training, generating = Turns(trainer, "trainer", lock), Turns(generator, "generator", lock)
    with training.taken():
        parameters = trainer.open(model).num_parameters
    with generating.taken():
        generator.open(model)
    seconds: list[float] = []
    moved: list[float] = []
    for step in range(1, steps + WARM_UP + 1):
        began, before = time.perf_counter(), training.moving_s + generating.moving_s
        generator.load_weights(trainer.weights())
        with generating.taken():
            groups = rollouts(spec, generator, step)
        digest = trainer.digest()
        with training.taken():
            assert trainer.digest() == digest, "moving changed its weights"
            trainer.train(step, groups)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        moved.append(training.moving_s + generating.moving_s - before)
    peak = torch.cuda.max_memory_allocated() / GIB
    return Measured(parameters, peak, fmean(seconds[WARM_UP:]), fmean(moved[WARM_UP:]))


def rollouts(spec: RunSpec, generator: HfGenerator, step: int) -> list[PromptGroup]:
    """Groups whose rewards are drawn: what is learnt does not matter here."""
    width = spec.grpo.num_generations_per_prompt
    prompts = [generator.encode(f"{step + key}+{key}=") for key in range(spec.grpo.num_prompts_per_step)]
    params = SamplingParams(max_new_tokens=spec.generation.max_new_tokens)
    repeated = [prompt for prompt in prompts for _ in range(width)]
    completions = generator.generate(repeated, range(len(repeated)), params, lambda: False)
    rewards = np.random.default_rng(step).random(len(repeated))
    return [
        _group(key, prompt, completions[key * width : (key + 1) * width], rewards[key * width :])
        for key, prompt in enumerate(prompts)
    ]


def _group(key: int, prompt: Tokens, completions: list[Completion], rewards: np.ndarray) -> PromptGroup:
    version = WeightVersion(incarnation=1, step=0, digest="0" * 32)
    samples = [
        Sample(
            tokens=each.tokens,
            logprobs=each.logprobs,
            mask=np.ones(len(each.tokens), dtype=np.uint8),
            finish_reason=each.finish_reason,
            text=each.text,
            reward=float(reward),
            rewards={"reward": float(reward)},
            correct=False,
            seed=index,
        )
        for index, (each, reward) in enumerate(zip(completions, rewards, strict=False))
    ]
    return PromptGroup(key, 1, f"p{key}", prompt, version, version, tuple(samples))


if __name__ == "__main__":
    main()
