"""The checkpoint digest: equal states, wherever and however they are held; and nothing else."""

import random

import pytest
import torch

from ratchet.checkpoints.state import flatten, state_digest, unflatten
from ratchet.spec.faults import RatchetError


def state() -> dict[str, object]:
    random.seed(3)
    return {
        "model": {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.full((2, 3), 0.5)}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}],
        },
        "rng": {"torch": torch.get_rng_state().clone(), "python": random.getstate(), "none": None},
    }


def test_flatten_and_unflatten_are_inverse() -> None:
    flat = flatten(state())
    assert set(flat) == {
        "model/a.weight",
        "model/b",
        "optimizer/state/0/step",
        "optimizer/state/0/exp_avg",
        "optimizer/param_groups",
        "rng/torch",
        "rng/python",
        "rng/none",
    }
    back = unflatten(state(), flat)
    assert state_digest(back) == state_digest(state())
    assert back["optimizer"]["state"].keys() == {0}  # type: ignore[index,call-overload]


def test_lists_and_tuples_of_tensors_keep_their_kind() -> None:
    nested = {"x": [torch.ones(1), (torch.zeros(1), 2)]}
    back = unflatten(nested, flatten(nested))
    assert isinstance(back["x"], list)
    assert isinstance(back["x"][1], tuple)
    assert back["x"][1][1] == 2


def test_the_digest_does_not_depend_on_order_or_storage() -> None:
    original = state()
    reordered = {key: original[key] for key in ("rng", "optimizer", "model")}
    model = original["model"]
    assert isinstance(model, dict)
    reordered["model"] = {"b": model["b"], "a.weight": model["a.weight"].t().contiguous().t()}
    assert state_digest(reordered) == state_digest(original)


def flip_one_bit(changed: dict[str, object]) -> None:
    changed["model"]["b"].view(torch.int16)[1] ^= 1  # type: ignore[index]


def rename(changed: dict[str, object]) -> None:
    changed["model"]["c"] = changed["model"].pop("b")  # type: ignore[index,attr-defined]


def reshape(changed: dict[str, object]) -> None:
    changed["model"]["a.weight"] = torch.arange(6.0).reshape(3, 2)  # type: ignore[index]


def other_dtype(changed: dict[str, object]) -> None:
    changed["model"]["b"] = changed["model"]["b"].view(torch.int16)  # type: ignore[index]


def other_number(changed: dict[str, object]) -> None:
    changed["optimizer"]["param_groups"][0]["lr"] = 1e-3 + 1e-18  # type: ignore[index]


def integer_for_float(changed: dict[str, object]) -> None:
    changed["optimizer"]["param_groups"][0]["params"] = [0.0]  # type: ignore[index]


def list_for_tuple(changed: dict[str, object]) -> None:
    changed["optimizer"]["param_groups"][0]["betas"] = [0.9, 0.999]  # type: ignore[index]


def tensor_for_plain(changed: dict[str, object]) -> None:
    changed["rng"]["none"] = torch.frombuffer(bytearray(b"None"), dtype=torch.uint8)  # type: ignore[index]


@pytest.mark.parametrize(
    "change",
    [
        flip_one_bit,
        rename,
        reshape,
        other_dtype,
        other_number,
        integer_for_float,
        list_for_tuple,
        tensor_for_plain,
    ],
)
def test_the_digest_sees(change: object) -> None:
    changed = state()
    change(changed)  # type: ignore[operator]
    assert state_digest(changed) != state_digest(state())


def test_values_without_a_canonical_form_are_refused_by_name() -> None:
    with pytest.raises(RatchetError, match="rng/generator holds a object"):
        state_digest({"rng": {"generator": object(), "t": torch.ones(1)}})


def test_two_entries_with_one_path_are_refused() -> None:
    with pytest.raises(RatchetError, match="optimizer/0"):
        flatten({"optimizer": {0: torch.ones(1), "0": torch.ones(1)}})
