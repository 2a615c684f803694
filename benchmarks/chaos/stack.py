"""A stack whose failpoints are on."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.failpoints import Failpoints
from benchmarks.stack import embedded_stack
from ratchet.cli.client import Api
from ratchet.sessions.failpoints import VARIABLE
from ratchet.sessions.receipt_book import NO_JOIN
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from ratchet.store import Store
from workers.supervisor.state import PartStatus, SupervisorState

_LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class ChaosStack:
    """What the harness needs of a running stack."""

    home: Home
    api: Api
    store: Store
    """Read past the API, which may be dead."""
    failpoints: Failpoints

    def wait_whole(self, within: float) -> None:
        """Until every part of it is up. Raises Unavailable."""
        end = time.monotonic() + within
        while missing := [part.name for part in SupervisorState.load(self.home).parts if not _is_up(part)]:
            if time.monotonic() > end:
                raise Unavailable(f"not up again within {within:.0f} s: {', '.join(missing)}")
            time.sleep(_LOOK_EVERY)


def _is_up(part: PartStatus) -> bool:
    return part.state == "ready" and part.pid is not None


@contextmanager
def chaos_stack(models: Path, *, joining: bool = True) -> Iterator[ChaosStack]:
    """A stack in a folder of its own. `models`: see `embedded_stack`. `joining`: False for the negative
    control."""
    with tempfile.TemporaryDirectory(prefix="ratchet-failpoints-") as folder:
        environment = {VARIABLE: folder} | ({} if joining else {NO_JOIN: "1"})
        with embedded_stack(models, environment) as stack:
            store = Store(stack.home.store_url)
            yield ChaosStack(stack.home, stack.api, store, Failpoints(Path(folder)))
            store.close()
