"""`tiny`: a model of 0.6 M parameters that half knows how to add, built on the spot.

Small enough to be trained on one core in half a minute, and real: a Qwen2 with its own tokenizer, in the
Hugging Face layout. Supervised training stops early, so that reinforcement learning has something to find,
and never sees a held-out problem. With one torch on one machine every build is bit-equal to every other,
whatever the caller's threads and random state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from ratchet.environments.arithmetic import is_heldout

SEED = 0
OPERANDS = range(10, 100)
SFT_STEPS = 340
SFT_BATCH = 128
SFT_LR = 1e-3
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}

_SPECIAL = ("<pad>", "<bos>", "<eos>")
_CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
_IGNORED = -100


def recipe() -> dict[str, object]:
    """All that decides the weights, the training problems included; its digest is the model's cache key."""
    problems = hashlib.sha256(str(_training_problems()).encode()).hexdigest()
    return {
        "version": 1,
        "seed": SEED,
        "shape": SHAPE,
        "characters": [*_SPECIAL, *_CHARACTERS],
        "problems": problems,
        "sft": [SFT_STEPS, SFT_BATCH, SFT_LR],
    }


def build_tiny(folder: Path, sft_steps: int = SFT_STEPS) -> None:
    """Train it and write it to `folder`: about 30 s on one thread."""
    tokenizer = char_tokenizer()
    with _reproducible():
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                tie_word_embeddings=False,
                pad_token_id=_SPECIAL.index("<pad>"),
                bos_token_id=_SPECIAL.index("<bos>"),
                eos_token_id=_SPECIAL.index("<eos>"),
                **SHAPE,
            )
        )
        _train(model, *_encode_problems(tokenizer), sft_steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def char_tokenizer() -> Qwen2Tokenizer:
    """One token a character, for printable ASCII and newline; other characters are left out.

    Qwen2's own tokenizer without merges: AutoTokenizer gives every Qwen2 folder that class, whatever it says.
    """
    alphabet = ByteLevel(add_prefix_space=False, use_regex=False)
    characters = [alphabet.pre_tokenize_str(character)[0][0] for character in _CHARACTERS]
    pad, bos, eos = _SPECIAL
    return Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([*_SPECIAL, *characters])},
        merges=[],
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=pad,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _training_problems() -> list[tuple[int, int]]:
    return [(a, b) for a in OPERANDS for b in OPERANDS if not is_heldout(a, b, "+")]


def _encode_problems(tokenizer: Qwen2Tokenizer) -> tuple[Tensor, Tensor]:
    """Inputs and labels, int64 [N, L] each: `12+34=` asks, `46`, newline and end of sequence answer."""
    prompts = [f"{a}+{b}=" for a, b in _training_problems()]
    answers = [f"{a + b}\n{tokenizer.eos_token}" for a, b in _training_problems()]
    encoded: Any = tokenizer(
        [p + a for p, a in zip(prompts, answers, strict=True)], padding=True, padding_side="right"
    )
    tokens = torch.tensor(encoded["input_ids"])
    labels = torch.where(torch.tensor(encoded["attention_mask"]) == 1, tokens, _IGNORED)
    labels[:, : len(prompts[0])] = _IGNORED
    return tokens, labels


def _train(model: Qwen2ForCausalLM, tokens: Tensor, labels: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=SFT_LR)
    for _ in range(steps):
        batch = torch.randint(len(tokens), (SFT_BATCH,))
        logits = model(input_ids=tokens[batch], use_cache=False).logits[:, :-1]
        targets = labels[batch][:, 1:]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@contextmanager
def _reproducible() -> Iterator[None]:
    """One thread and a seed of our own; the caller gets its threads and random state back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield
    finally:
        torch.set_num_threads(threads)
