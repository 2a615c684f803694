"""Small random models on disk, and generators that hold their weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ratchet.generation.hf import HfGenerator
from ratchet.policy.weights import named_weights
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec

END = 0
TEXT = "the cat sat on the mat and the hat was on the cat; a bat ate the oat that the rat left there. " * 3


@pytest.fixture
def spec() -> Callable[..., RunSpec]:
    def make(**generation: object) -> RunSpec:
        return RunSpec(
            name="test",
            policy=PolicySpec(model="tiny", train_micro_batch_size=1),
            generation=GenerationSpec.model_validate({"max_new_tokens": 8, **generation}),
            grpo=GrpoSpec(num_prompts_per_step=2, num_generations_per_prompt=2, max_num_steps=1),
            environment=EnvironmentSpec(name="arithmetic"),
        )

    return make


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges, so that tokens and characters do not line up."""
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TEXT], BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<end>")


@pytest.fixture(scope="session")
def model_folder(
    tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int | list[int]], Path]:
    """`llama` (tied embeddings, grouped queries) or `qwen2` (untied, biases); same seed each time."""

    def make(kind: str, end: int | list[int] = END) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        settings = {
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.4,  # decided enough that logits differ, open enough that samples do
            "eos_token_id": end,
            "bos_token_id": None,
            "pad_token_id": END,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            if kind == "llama":
                model = LlamaForCausalLM(LlamaConfig(**settings, tie_word_embeddings=True))
            else:
                model = Qwen2ForCausalLM(Qwen2Config(**settings, tie_word_embeddings=False))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def llama(model_folder: Callable[..., Path]) -> Path:
    return model_folder("llama")


@pytest.fixture(scope="session")
def qwen2(model_folder: Callable[..., Path]) -> Path:
    return model_folder("qwen2")


@pytest.fixture
def refitted(spec: Callable[..., RunSpec]) -> Callable[..., HfGenerator]:
    """A generator opened on a folder, with that folder's weights in it."""

    def make(folder: Path, precision: str = "float32") -> HfGenerator:
        generator = HfGenerator(spec(precision=precision))
        generator.open(folder)
        trained = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        generator.load_weights(named_weights(trained))
        return generator

    return make
