"""Where a stack is: as its supervisor wrote it down, or as the environment of a container says."""

import pytest

from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from ratchet.spec.stack import TEMPORAL_UI_VARIABLE, TEMPORAL_VARIABLE, StackState, current_stack

WRITTEN = StackState(
    supervisor_pid=7,
    temporal_address="127.0.0.1:1",
    namespace="ratchet",
    temporal_ui="http://127.0.0.1:2",
    ray_dashboard="http://ray:8265",
)


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


def test_what_the_supervisor_wrote_counts_where_the_environment_says_nothing(home):
    with pytest.raises(Unavailable, match="ratchet up"):
        current_stack(home)
    home.state_file.write_text(WRITTEN.model_dump_json())
    assert current_stack(home) == WRITTEN


def test_the_environments_temporal_needs_no_supervisor_and_wins_over_one(home, monkeypatch):
    monkeypatch.setenv(TEMPORAL_VARIABLE, "temporal:7233")
    monkeypatch.setenv(TEMPORAL_UI_VARIABLE, "http://localhost:8080")
    alone = current_stack(home)
    assert (alone.temporal_address, alone.namespace, alone.ray_dashboard) == (
        "temporal:7233",
        "ratchet",
        None,
    )
    home.state_file.write_text(WRITTEN.model_dump_json())
    beside = current_stack(home)
    assert (beside.temporal_address, beside.temporal_ui) == ("temporal:7233", "http://localhost:8080")
    assert beside.ray_dashboard == "http://ray:8265"
