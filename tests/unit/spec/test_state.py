"""A run outlives the Ratchet that started it: newer code reads its state, or refuses it with the way out."""

import json
from pathlib import Path

import pytest

from ratchet.spec.faults import SpecError
from ratchet.spec.operations import CommitArgs
from ratchet.spec.state import SCHEMA_VERSION, RunInput, RunState, Slot

V1 = Path(__file__).parents[2] / "states" / "run-input-v1.json"


def test_a_state_of_version_1_is_read() -> None:
    first = RunInput.model_validate_json(V1.read_text())
    state = first.state
    assert (state.schema_version, state.step, state.cursor) == (SCHEMA_VERSION, 2, 4)
    assert state.head is not None
    assert isinstance(state.open_operations[0], CommitArgs)
    assert state.slot is Slot.EXEMPT  # it began before there was admission
    assert (state.must_restore, state.recoveries, state.hyperparameters) == (False, 0, [])
    assert RunInput.model_validate_json(first.model_dump_json()) == first


def test_a_newer_state_is_refused_with_the_way_out() -> None:
    data = json.loads(V1.read_text())
    data["state"] |= {"schema_version": SCHEMA_VERSION + 1, "what_is_to_come": 1}
    with pytest.raises(SpecError, match=r"schema version 4.*ratchet run resume continue-as-new"):
        RunInput.model_validate(data)


def test_an_unknown_key_of_a_known_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="recoverys"):
        RunState.model_validate({"run": "r", "recoverys": 1})
