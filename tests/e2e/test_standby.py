"""Two supervisors on one store, one Temporal server and one folder of artifacts: the run outlives either."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ratchet.spec.home import STORE_VARIABLE
from ratchet.spec.stack import StackState
from ratchet.store import LeaseRecord, Leases, Store
from tests.e2e.conftest import MOMENTS, QUICK, Stack, until
from workers.supervisor.leadership import ACTIVE
from workers.supervisor.processes import look, of_stack, signal_to
from workers.supervisor.status import status

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]

TTL_S = 10.0


class Pair:
    """Supervisors `a` and `b`, and what is outside of both and shared by them."""

    def __init__(self, root: Path, models: Path) -> None:
        self.store_url = f"sqlite:///{root / 'store.db'}"
        self.outside, self.a, self.b = (self._stack(root / name, models) for name in ("outside", "a", "b"))
        self.outside.home.artifacts.mkdir()
        for one in (self.a, self.b):
            one.home.artifacts.symlink_to(self.outside.home.artifacts)
        self.store = Store(self.store_url)

    def _stack(self, root: Path, models: Path) -> Stack:
        root.mkdir()
        stack = Stack(root, models)
        stack.environment[STORE_VARIABLE] = self.store_url
        return stack

    def start(self) -> None:
        self.outside.ratchet("up", "--detach", "--parts", "temporal,api")
        for one in (self.a, self.b):
            self.stand_by(one)

    def stand_by(self, one: Stack) -> None:
        temporal = StackState.load(self.outside.home).temporal_address
        words = ("--standby", "--take-over-after", str(TTL_S), "--temporal", temporal)
        one.ratchet("up", "--detach", "--parts", "temporal,ray,control", *words)

    def lease(self) -> LeaseRecord:
        lease = Leases(self.store).read(ACTIVE)
        assert lease
        return lease

    def active_and_other(self) -> tuple[Stack, Stack]:
        holder = self.lease().holder or ""
        return (self.a, self.b) if f"{self.a.home.root} " in holder else (self.b, self.a)

    def rows(self, run: str) -> list[object]:
        """All that is on record of a run."""
        store = self.store
        return [store.get_run(run), store.incarnations(run), store.steps(run), store.checkpoints(run)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("standby"), models)
    try:
        pair.start()
        yield pair
    finally:
        for stack in (pair.a, pair.b, pair.outside):
            stack.ratchet("down")


def gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(look(pid) for pid in pids)


@pytest.mark.parametrize("what", ["host-frozen", "supervisor-killed"])
def test_the_run_goes_on_with_the_other_one_and_ends_the_same(
    pair: Pair, stack: Stack, undisturbed: str, what: str
) -> None:
    old, new = pair.active_and_other()
    if not status(new.home).running:
        pair.stand_by(new)
    epoch, supervisor = pair.lease().epoch, StackState.load(old.home).supervisor_pid
    failpoint, action = MOMENTS["mid-train"]
    old.failpoints.arm(failpoint, action)
    pair.outside.launch(what, *QUICK)
    old.failpoints.wait_hit(failpoint)

    pids = [process.pid for process in of_stack(old.home)]
    assert supervisor in pids
    if what == "host-frozen":
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    else:
        os.kill(supervisor, signal.SIGKILL)
    until("the other one", lambda: pair.lease().epoch == epoch + 1)
    old.failpoints.release(failpoint)  # or the session of a killed supervisor would end the run, alone
    assert what == "host-frozen" or gone(pids)(), "all of it was over before anybody else was active"

    shown, expected = pair.outside.ended(what), stack.show(undisturbed)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]
    assert [row.step for row in pair.store.steps_on_path(what)] == [1, 2, 3]
    (incident,) = [event for event in pair.store.incidents(what) if "had been silent" in event.message]
    assert f"{old.home.root} " in incident.message

    before, files = pair.rows(what), sorted(pair.outside.home.artifacts.rglob("*"))
    if what == "host-frozen":
        for pid in pids:
            signal_to(pid, signal.SIGCONT)  # the first to wake may have ended it by now
    until("the end of the old one", gone([pid for pid in pids if pid != supervisor]))
    # Its guard ends the supervisor too, unless that has ended everything first, and stands by again.
    until("its turn to wait", lambda: look(supervisor) is None or status(old.home).standing_by)
    assert {process.pid for process in of_stack(old.home)} <= {supervisor}
    assert pair.lease().epoch == epoch + 1
    assert pair.rows(what) == before
    assert sorted(pair.outside.home.artifacts.rglob("*")) == files
    old.ratchet("down")
    assert old.segments() == []
