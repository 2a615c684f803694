"""What is a session's is told by name, and nothing else of that name's neighbours is."""

from pathlib import Path

import pytest

from ratchet.refit.segments import new_segment, segment_prefix
from ratchet.spec.home import Home
from ratchet.spec.ids import actor_name
from workers.reap import ROLES, session_of, sweep_segments


@pytest.mark.parametrize("role", ROLES)
def test_actors_name_their_session(role: str) -> None:
    assert session_of(actor_name(role, "a-b", 2, 3), "a-b") == 2


@pytest.mark.parametrize(
    ("actor", "run"),
    [
        (actor_name("trainer", "a-b", 2), "b"),
        (actor_name("trainer", "a", 1, 2), "a-1"),
        (actor_name("trainer", "a-1", 2, 3), "a"),
        (actor_name("trainer", "a.b", 2), "a-b"),
        ("somebody-elses", "a"),
    ],
)
def test_actors_of_other_runs_have_none(actor: str, run: str) -> None:
    assert session_of(actor, run) is None


def test_segments_go_with_their_session_also_when_their_actor_died_long_ago(tmp_path: Path) -> None:
    home = Home(tmp_path)
    owners = {number: actor_name("trainer", "a", number) for number in (1, 2, 3)} | {4: "trainer-a-b-1-0"}
    segments = {number: new_segment(segment_prefix(home, owner)) for number, owner in owners.items()}
    elsewhere = new_segment(segment_prefix(Home(tmp_path / "other"), owners[1]))
    for path in (*segments.values(), elsewhere):
        path.touch()
    try:
        assert sweep_segments(home, "a", lambda session: session < 3) == [segments[1].name, segments[2].name]
        assert not segments[1].exists()
        assert not segments[2].exists()
        assert segments[3].exists()
        assert segments[4].exists()
        assert elsewhere.exists()
    finally:
        for path in (*segments.values(), elsewhere):
            path.unlink(missing_ok=True)
