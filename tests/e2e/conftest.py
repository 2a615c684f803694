"""A whole stack, as `ratchet up` starts it, driven through the command."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from ratchet.cli.client import Api
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.stack import StackState
from ratchet.store import Store
from workers.supervisor.state import SupervisorState
from workers.temporal import connect

ROOT = Path(__file__).parents[2]
T = TypeVar("T")

QUICK = (
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "policy.train_micro_batch_size=8",
    "grpo.max_num_steps=3",
    "evaluation.num_problems=16",
    "checkpointing.every=0",
)
"""tiny-addition, cut down to what a kill test needs."""

MOMENTS = {
    # In step 2: its second prompt group, and its train step. Counted by the actors, which are the run's own.
    "mid-rollout": ("rollout_batch.group", "6 hold"),
    "mid-train": ("train_step.leased", "2 hold"),
}


def until(what: str, found: Callable[[], T | None], deadline: float = 60.0, *, every: float = 0.05) -> T:
    """Poll until `found` gives something true. Fails, saying what was waited for."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(every)
    pytest.fail(f"waited {deadline:.0f} s for {what}")


class Failpoints:
    """Arms, sees and releases named moments in the stack's processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arm(self, name: str, action: str) -> None:
        (self._folder / name).write_text(action)

    def wait_hit(self, name: str, deadline: float = 120.0, *, hits: int = 1) -> None:
        file = self._folder / f"{name}.hit"
        until(f"failpoint {name}", lambda: file.exists() and len(file.read_text().split()) >= hits, deadline)

    def was_hit(self, name: str) -> bool:
        return (self._folder / f"{name}.hit").exists()

    def release(self, name: str) -> None:
        (self._folder / f"{name}.release").touch()

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()


class Stack:
    """One RATCHET_HOME with a stack on it."""

    def __init__(self, root: Path, models: Path) -> None:
        self.home = Home(root / "home")
        self.home.root.mkdir()
        self.home.models.symlink_to(models)
        failpoints = root / "failpoints"
        failpoints.mkdir()
        self.failpoints = Failpoints(failpoints)
        self.environment = {
            **os.environ,
            HOME_VARIABLE: str(self.home.root),
            "RATCHET_FAILPOINTS": str(failpoints),
        }

    def ratchet(
        self, *words: str, expect: int = 0, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run the command, from the checkout, and look at its exit code."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ratchet"), *words],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == expect, f"ratchet {' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.ratchet(*words, "--json").stdout)

    def launch(self, run: str, *settings: str, recipe: str = "recipes/tiny-addition.yaml") -> None:
        # The data plane that starts fastest, unless the test is about another one.
        settings = ("data_plane.backend=memory", *settings)
        sets = [word for setting in settings for word in ("--set", setting)]
        self.ratchet("run", "launch", recipe, "--id", run, *sets)

    def show(self, run: str) -> dict[str, Any]:
        """What `run show --json` prints. Asked for without the command, whose start costs half a second of
        the cores that the run needs."""
        with Api(self.home) as api:
            return api.run(run).model_dump(mode="json")

    def phase(self, run: str) -> str:
        return self.show(run)["phase"]

    def ended(self, run: str, deadline: float = 240.0) -> dict[str, Any]:
        """Wait for the end of a run and return what `run show` says."""

        def look() -> dict[str, Any] | None:
            try:
                shown = self.show(run)
            except RatchetError:
                return None  # it may be the API, or what stands behind it, that was killed
            return shown if shown["phase"] in ("completed", "stopped", "failed") else None

        # Seldom: every look asks the workflow.
        return until(f"the end of {run}", look, deadline, every=0.3)

    @property
    def store(self) -> Store:
        return Store(self.home.store_url)

    def pid(self, victim: str, run: str) -> int | None:
        """The process that plays a part right now; None between two lives, and once the session is over."""
        parts = {part.name: part for part in SupervisorState.load(self.home).parts}
        if victim in parts:
            return parts[victim].pid
        session = self.home.session_folder(run, 1)
        try:
            if (actor := session / "actors" / f"{victim}.json").exists():
                return json.loads(actor.read_text())["pid"]
            worker = json.loads((session / "ready.json").read_text())["pid"]
            if victim == "session-worker":
                return worker
            children = psutil.Process(worker).children()
            hosts = [child.pid for child in children if "workers.session_host" in " ".join(child.cmdline())]
        except (FileNotFoundError, psutil.NoSuchProcess, psutil.ZombieProcess):
            return None
        return hosts[0] if hosts and victim == "session-host" else None

    def replaced(self, victim: str, run: str, killed: int) -> bool:
        return self.pid(victim, run) not in (None, killed)

    def kill(self, victim: str, run: str) -> int:
        pid = self.pid(victim, run)
        assert pid is not None, f"run {run} has no {victim}"
        os.kill(pid, signal.SIGKILL)
        return pid

    def submits_in_flight(self, run: str) -> int:
        """How often the operation that runs now has been asked for, as its last heartbeat says."""

        async def look() -> int:
            state = StackState.load(self.home)
            client = await connect(state.temporal_address, namespace=state.namespace)
            description = await client.get_workflow_handle(run).describe()
            for pending in description.raw_description.pending_activities:
                details = await client.data_converter.decode_wrapper(pending.heartbeat_details)
                if details:
                    return details[0]["submits"]
            return 0

        return asyncio.run(look())

    def segments(self) -> list[Path]:
        """Shared-memory segments of this home."""
        return sorted(Path("/dev/shm").glob(f"ratchet-{self.home.tag}*"))

    def processes(self) -> list[str]:
        """Processes whose command line or environment names this home."""
        found: list[str] = []
        for process in psutil.process_iter():
            try:
                words = [*process.cmdline(), *process.environ().values()]
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            if process.pid != os.getpid() and any(str(self.home.root) in word for word in words):
                found.append(" ".join(process.cmdline()))
        return found


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Stack]:
    """One stack for all tests of this folder; each brings runs of its own."""
    stack = Stack(tmp_path_factory.mktemp("e2e"), models)
    stack.ratchet("up", "--detach")
    try:
        yield stack
    finally:
        stack.ratchet("down")


@pytest.fixture(scope="session")
def undisturbed(stack: Stack) -> str:
    """A run nobody touches: what all the others must end like."""
    stack.launch("undisturbed", *QUICK)
    assert stack.ended("undisturbed")["phase"] == "completed"
    return "undisturbed"


@pytest.fixture(autouse=True)
def _no_failpoint_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "stack" in request.fixturenames:
        request.getfixturevalue("stack").failpoints.clear()
