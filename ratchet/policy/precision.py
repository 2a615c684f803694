"""The precision that trainers and generators compute in."""

import torch


def resolve(precision: str, device: torch.device) -> torch.dtype:
    """The dtype that `precision` (`float32`, `bfloat16` or `auto`) means on `device`.

    `auto` is bfloat16 where the hardware computes in it: CUDA from Ampere on, processors with AVX512_BF16 or
    AMX. Elsewhere it is float32, since emulated bfloat16 is several times slower.
    """
    if precision == "auto":
        return torch.bfloat16 if _computes_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def _computes_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
