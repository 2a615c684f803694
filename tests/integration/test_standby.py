"""Two supervisors around one store: who acts, and what is left of who does not. tests/e2e adds a run."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ratchet.spec.faults import Unavailable
from ratchet.spec.home import STORE_VARIABLE
from ratchet.store import LeaseRecord, Leases, Store
from tests.integration.conftest import Stack
from workers.supervisor.leadership import ACTIVE
from workers.supervisor.processes import look, of_stack, signal_to
from workers.supervisor.state import LeaseView
from workers.supervisor.status import status

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TTL_S = 5.0
NOBODY = "127.0.0.1:1"
"""A Temporal server that is never asked: only the parts that need one ask it."""


class Standby(Stack):
    """One of several, with an API when it is active."""

    def __init__(self, root: Path, store: str) -> None:
        super().__init__(root)
        self._words = ("--standby", "--take-over-after", str(TTL_S), "--temporal", NOBODY)
        self._store = {STORE_VARIABLE: store}

    def stand_by(self) -> None:
        done = self.command("up", "--detach", "--parts", "api", *self._words, "--json", **self._store)
        assert done.returncode == 0, done.stderr

    @property
    def lease(self) -> LeaseView:
        lease = status(self.home).lease
        assert lease
        return lease

    def pids(self) -> list[int]:
        """Everything of it, the supervisor too."""
        return [process.pid for process in of_stack(self.home)]


class Pair:
    def __init__(self, root: Path) -> None:
        self.database = root / "store.db"
        self.url = f"sqlite:///{self.database}"
        self._leases = Leases(Store(self.url))
        self.a, self.b = (Standby(root / name, self.url) for name in "ab")

    def lease(self) -> LeaseRecord:
        lease = self._leases.read(ACTIVE)
        assert lease
        return lease

    def active(self, one: Standby) -> bool:
        return f"{one.home.root} " in (self.lease().holder or "")

    def active_and_other(self) -> tuple[Standby, Standby]:
        return (self.a, self.b) if self.active(self.a) else (self.b, self.a)

    def until_active(self, one: Standby, epoch: int) -> None:
        """With its API up."""

        def is_up() -> bool:
            found = status(one.home)
            return found.ready and "ready" in [part.state for part in found.parts if part.name == "api"]

        one.until(lambda: self.active(one) and is_up(), f"{one.home.root.name} active")
        assert self.lease().epoch == epoch


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("standby")
    pair = Pair(root)
    try:
        pair.a.stand_by()
        pair.b.stand_by()
        yield pair
    finally:
        for stack in (pair.a, pair.b):
            stack.command("down")


def gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(look(pid) for pid in pids)


def test_the_second_one_waits_and_says_for_whom(pair: Pair) -> None:
    assert pair.active(pair.a)
    assert (pair.a.lease.role, pair.b.lease.role) == ("active", "standby")
    waiting = pair.b.command("status").stdout
    assert "standing by" in waiting
    assert f"held by {pair.lease().holder}, epoch 1, renewed " in waiting
    assert status(pair.b.home).parts == ()
    assert "lease  active, epoch 1, renewed " in pair.a.command("status").stdout


def test_one_that_does_not_stand_by_is_refused_beside_an_active_one(pair: Pair, tmp_path: Path) -> None:
    words = ("--parts", "temporal,ray", "--temporal", NOBODY)
    done = Stack(tmp_path / "home").command("up", "--detach", *words, **{STORE_VARIABLE: pair.url})
    assert done.returncode == 1
    assert f"{pair.lease().holder} is the active supervisor of this store: add --standby" in done.stderr


def test_one_that_is_taken_down_makes_room_at_once(pair: Pair) -> None:
    assert pair.a.command("down").returncode == 0
    pair.until_active(pair.b, epoch=2)
    assert "had stopped" in (pair.b.lease.took_over or "")


def test_a_supervisor_that_is_frozen_is_replaced_and_nothing_of_it_is_left(pair: Pair) -> None:
    old, new = pair.active_and_other()
    new.stand_by()
    epoch, supervisor, pids = pair.lease().epoch, old.state.supervisor_pid, old.pids()
    assert supervisor in pids
    os.kill(supervisor, signal.SIGSTOP)
    new.until(lambda: pair.lease().epoch == epoch + 1, "another epoch")
    assert gone(pids)(), "all of it was over before anybody else was active"
    pair.until_active(new, epoch + 1)
    assert f"{old.home.root} " in (new.lease.took_over or "")
    assert not status(old.home).running


def test_a_host_that_stood_still_and_goes_on_does_no_harm(pair: Pair) -> None:
    old, new = pair.active_and_other()
    new.stand_by()
    epoch, supervisor, pids = pair.lease().epoch, old.state.supervisor_pid, old.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    pair.until_active(new, epoch + 1)
    for pid in pids:
        signal_to(pid, signal.SIGCONT)  # the first to wake may have ended it by now
    others = [pid for pid in pids if pid != supervisor]
    old.until(gone(others), "the end of all that had been frozen")
    # Its guard ends the supervisor too, if that has not ended everything first, and stands by again.
    old.until(lambda: look(supervisor) is None or status(old.home).standing_by, "the old one's turn to wait")
    assert pair.active(new)
    assert pair.lease().epoch == epoch + 1
    assert set(old.pids()) <= {supervisor}
    old.command("down")


WRITING = """
import os, signal, sqlite3, sys
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_that_is_frozen_while_it_writes_to_the_store_is_ended(pair: Pair) -> None:
    """Seen: of a whole host that was frozen, one process was within a transaction."""
    active, _ = pair.active_and_other()
    epoch, store = pair.lease().epoch, sqlite3.connect(pair.database, isolation_level=None, timeout=0.1)
    words = [sys.executable, "-c", WRITING, str(pair.database)]
    with ExitStack() as ends, subprocess.Popen(words, stdout=subprocess.PIPE) as frozen:
        ends.callback(store.close)
        ends.callback(frozen.kill)
        assert frozen.stdout
        assert frozen.stdout.readline() == b"writing\n"
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            store.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match=f"process {frozen.pid} holds it"):
            Leases(Store(pair.url, busy_s=0.1)).take("another", "me", TTL_S, None)
        assert frozen.wait(60) == -signal.SIGKILL
    active.until(lambda: pair.lease().epoch > epoch, "another term")
    now, _ = pair.active_and_other()
    pair.until_active(now, pair.lease().epoch)


def test_while_the_store_is_away_the_active_one_ends_and_nobody_is(pair: Pair) -> None:
    active, _ = pair.active_and_other()
    epoch, supervisor = pair.lease().epoch, active.state.supervisor_pid
    api = active.pid_of("api")
    with sqlite3.connect(pair.database, isolation_level=None) as hog:
        hog.execute("BEGIN EXCLUSIVE")
        active.until(lambda: look(api) is None, "the end of its stack")
        assert look(supervisor), "it waits for the store"
        hog.execute("ROLLBACK")
    active.until(lambda: pair.lease().epoch == epoch + 1, "an active one again")
    now, _ = pair.active_and_other()
    pair.until_active(now, epoch + 1)
    assert now.lease.took_over
    assert look(supervisor)
