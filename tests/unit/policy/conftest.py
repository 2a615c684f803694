from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import RunSpec

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Large enough that the random model is far from uniform, so that nothing agrees by accident.
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _float64_is_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' norms run in float32 whatever the model's precision: there the sum of the gradients
    of rows that share a prompt would be rounded, and not, as without a pack, each of them."""
    for norm in (LlamaRMSNorm, Qwen2RMSNorm):
        original = norm.forward

        def forward(self: Any, hidden: torch.Tensor, original: Any = original) -> torch.Tensor:
            if hidden.dtype != torch.float64:
                return original(self, hidden)
            return nn.functional.rms_norm(hidden, hidden.shape[-1:], self.weight, self.variance_epsilon)

        monkeypatch.setattr(norm, "forward", forward)


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tied Qwen2 and an untied Llama with dropout in its config, random, float32."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    models = {
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
        "llama": LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False, attention_dropout=0.5)),
    }
    for name, model in models.items():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):  # they begin at zero, where no relative error can be small
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(root / name)
    return {name: root / name for name in models}


@pytest.fixture(params=["qwen2", "llama"])
def model_folder(request: pytest.FixtureRequest, model_folders: dict[str, Path]) -> Path:
    return model_folders[request.param]


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., RunSpec]:
    """A run spec of 6 prompts x 4 samples; keyword arguments replace sections' keys."""

    def make(**sections: dict[str, Any]) -> RunSpec:
        spec: dict[str, Any] = {
            "name": "unit",
            "policy": {
                "model": "tiny",
                "train_micro_batch_size": 7,
                "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "warmup_steps": 4, "max_grad_norm": 0.5},
            },
            "generation": {"max_new_tokens": 8, "temperature": 0.8},
            "grpo": {"num_prompts_per_step": 6, "num_generations_per_prompt": 4, "max_num_steps": 9},
            "environment": {"name": "arithmetic"},
        }
        for section, values in sections.items():
            spec[section] = {**spec.get(section, {}), **values}
        return RunSpec.model_validate(spec)

    return make


@pytest.fixture(scope="session")
def make_groups() -> Callable[..., list[PromptGroup]]:
    """Six groups with ragged prompts, responses and masks; those in `constant` have equal rewards."""

    def make(seed: int = 0, constant: tuple[int, ...] = (), num: int = 6) -> list[PromptGroup]:
        rng = np.random.default_rng(seed)
        version = WeightVersion(incarnation=1, step=0, digest="0" * 32)
        groups = []
        for key in range(num):
            samples = []
            for index in range(4):
                length = int(rng.integers(1, 9))
                mask = (rng.random(length) < 0.8).astype(np.uint8)
                mask[0] = 1
                reward = 0.1 if key in constant else float(index == 0) + float(rng.normal())
                samples.append(
                    Sample(
                        tokens=rng.integers(0, VOCABULARY, length).astype(np.int32),
                        logprobs=rng.normal(-4.0, 1.0, length).astype(np.float32),
                        mask=mask,
                        finish_reason="stop",
                        text="",
                        reward=reward,
                        rewards={"exact": reward},
                        correct=reward > 0.5,
                        seed=index,
                    )
                )
            prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 12))).astype(np.int32)
            groups.append(PromptGroup(key, 1, f"p{key}", prompt, version, version, tuple(samples)))
        return groups

    return make


@pytest.fixture
def make_trainer(make_spec: Callable[..., RunSpec], model_folder: Path) -> Callable[..., TorchTrainer]:
    def make(dtype: torch.dtype = torch.float32, **sections: dict[str, Any]) -> TorchTrainer:
        trainer = TorchTrainer(make_spec(**sections), dtype)
        trainer.open(model_folder)
        return trainer

    return make
