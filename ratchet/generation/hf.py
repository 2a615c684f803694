"""The `hf` generator: any causal language model of transformers, with a decode loop of our own.

`generate()` of transformers draws all rows from one global random stream; here a row's tokens depend on
its own seed and its own logits only, and every token comes with the log-probability it was drawn at.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.initialization import no_init_weights

from ratchet.generation.decoding import Decoder
from ratchet.generation.protocol import Completion, SamplingParams
from ratchet.generation.sampling import draw_uniforms, sample
from ratchet.generation.stopping import StopStrings, decode
from ratchet.policy.precision import resolve
from ratchet.policy.weights import named_weights
from ratchet.rollouts.group import Logprobs, Tokens
from ratchet.spec.faults import Cancelled, DataFault, InfraFault, SpecError
from ratchet.spec.run_spec import RunSpec

log = logging.getLogger(__name__)


class _Opened(NamedTuple):
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_tokens: Tensor
    """Token ids that end a response, [E]."""


class HfGenerator:
    """Implements `Generator`. Weights live in `generation.precision`, on a GPU where there is one."""

    def __init__(self, spec: RunSpec) -> None:
        self._precision = spec.generation.precision
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._opened: _Opened | None = None
        self._has_weights = False

    def open(self, model_folder: Path) -> None:
        """Build the model without reading its weights (they come by refit), and load the tokenizer."""
        dtype = resolve(self._precision, self._device)
        try:
            config = AutoConfig.from_pretrained(model_folder, local_files_only=True)
            # Parameters stay uninitialised; buffers that no refit brings (rotary frequencies) are computed.
            with no_init_weights():
                model = AutoModelForCausalLM.from_config(config, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise SpecError(f"policy.model: {model_folder} is no causal language model: {reason}") from error
        model.tie_weights()
        model.to(self._device).eval().requires_grad_(False)
        end_tokens = torch.tensor(_end_tokens(model_folder, config, tokenizer), device=model.device)
        self._opened = _Opened(model, tokenizer, end_tokens)
        self._has_weights = False
        name = str(dtype).removeprefix("torch.")
        log.info("generator: %s on %s (generation.precision: %s)", name, self._device, self._precision)

    def enter(self) -> None:
        self._move(self._device)

    def leave(self) -> None:
        self._move(torch.device("cpu"))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _move(self, device: torch.device) -> None:
        if (opened := self._opened) is not None:
            opened.model.to(device)  # pyright: ignore[reportArgumentType] - the stubs know one overload
            self._opened = opened._replace(end_tokens=opened.end_tokens.to(device))

    def encode(self, text: str) -> Tokens:
        return np.asarray(self._open().tokenizer(text)["input_ids"], dtype=np.int32)

    def wire_dtypes(self) -> dict[str, str]:
        tensors = named_weights(self._open().model)
        return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}

    def load_weights(self, tensors: Mapping[str, object]) -> None:
        """All or nothing: names and shapes are checked before the first byte is copied."""
        own = named_weights(self._open().model)
        _require_same("lacks", own.keys() - tensors.keys())
        _require_same("brings unknown", tensors.keys() - own.keys())
        arrived: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor) or tensor.shape != own[name].shape:
                found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InfraFault(
                    f"refit brings {name} as {found}, the generator's is {tuple(own[name].shape)}"
                )
            arrived[name] = tensor
        with torch.no_grad():
            for name, tensor in arrived.items():
                own[name].copy_(tensor)
        self._has_weights = True

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Tokens],
        seeds: Sequence[int],
        params: SamplingParams,
        should_stop: Callable[[], bool],
    ) -> list[Completion]:
        model, tokenizer, end_tokens = self._open()
        if not self._has_weights:
            raise InfraFault("the generator has no weights yet: refit it before it generates")
        if not prompts:
            return []
        if not all(len(prompt) for prompt in prompts):
            raise DataFault("a prompt without tokens cannot be continued")
        responses = _Responses(len(prompts), params.max_new_tokens)
        stops = StopStrings(tokenizer, params.stop_strings, len(prompts))
        uniforms = draw_uniforms(seeds, params.max_new_tokens)
        decoder = Decoder(model)
        _go_on(should_stop)
        logits = decoder.prefill(prompts)
        rows = torch.arange(len(prompts))  # the unfinished ones; the decoder holds no others
        while True:
            tokens, logprobs = sample(logits, uniforms[rows, responses.width], params)
            responses.append(rows, tokens, logprobs)
            stopped = torch.isin(tokens, end_tokens).cpu()
            stopped |= torch.tensor(stops.push(rows.tolist(), tokens.tolist()))
            responses.stopped[rows.numpy()] = stopped.numpy()
            if responses.width == params.max_new_tokens or stopped.all():
                return responses.completions(tokenizer)
            if stopped.any():
                left = torch.nonzero(~stopped).squeeze(-1)
                rows, on_device = rows[left], left.to(tokens.device)
                tokens = tokens[on_device]
                decoder.keep(on_device)
            _go_on(should_stop)
            logits = decoder.step(tokens)

    def _open(self) -> _Opened:
        if self._opened is None:
            raise InfraFault("the generator was not opened yet")
        return self._opened


class _Responses:
    """What a batch has generated so far. `width` is the number of steps; a row stops growing when it ends."""

    def __init__(self, num_rows: int, max_new_tokens: int) -> None:
        self._tokens: Tokens = np.zeros((num_rows, max_new_tokens), dtype=np.int32)
        self._logprobs: Logprobs = np.zeros((num_rows, max_new_tokens), dtype=np.float32)
        self._lengths = np.zeros(num_rows, dtype=np.int64)
        self.stopped = np.zeros(num_rows, dtype=np.bool_)
        self.width = 0

    def append(self, rows: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        index = rows.numpy()
        self._tokens[index, self.width] = tokens.cpu().numpy()
        self._logprobs[index, self.width] = logprobs.cpu().numpy()
        self.width += 1
        self._lengths[index] = self.width

    def completions(self, tokenizer: PreTrainedTokenizerBase) -> list[Completion]:
        tokens = [row[:length] for row, length in zip(self._tokens, self._lengths, strict=True)]
        texts = decode(tokenizer, [row.tolist() for row in tokens])
        return [
            Completion(
                tokens=tokens[i].copy(),
                logprobs=self._logprobs[i, : self._lengths[i]].copy(),
                finish_reason="stop" if self.stopped[i] else "length",
                text=texts[i],
            )
            for i in range(len(tokens))
        ]


def _go_on(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise Cancelled("generation was cancelled")


def _require_same(verb: str, names: set[str]) -> None:
    if names:
        shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        raise InfraFault(
            f"refit {verb} {len(names)} of the generator's tensors ({shown}): "
            "trainer and generator must be built from the same model folder"
        )


def _end_tokens(folder: Path, config: object, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that any of the model's files calls the end of a sequence, sorted."""
    found = [getattr(config, "eos_token_id", None), tokenizer.eos_token_id]
    if (folder / "generation_config.json").is_file():
        found.append(GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
    ids: set[int] = set()
    for value in found:
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(ids)
