"""How fast groups go through the data plane, next to the library alone: `python -m benchmarks.data_plane`.

Ratchet's side is what a run uses: the data plane's actor in one process, a StoragePlane in this one that
reaches it over a line, `put` and then `fetch` (a lease, and what was leased). The raw side is
TransferQueue as its documentation has it: its own `init` with one storage unit and polling,
`kv_batch_put` and `kv_batch_get`, one row for every sample, in a process of its own. Both are in one Ray
cluster, move the same bytes, and take turns round by round, so that whatever else the machine does meets
both. Numbers are medians; what makes room again is not timed.

JSON: `backends` -> `1kb`, `64kb`, `8mb` (groups of one cell of that size) and `grpo` (64 prompts of 8
samples, of mixed lengths) -> `put_mb_s`, `get_mb_s`, rows a second, and `ratio_to_raw`: the smaller of
the two rates over those of the library. `memory` has no library beneath it, so its ratio is null.
"""

import logging
import os
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.data_plane_cases import CASES, Case, ratchet_groups
from benchmarks.data_plane_raw import RawSide
from benchmarks.report import Report, arguments
from ratchet.data_plane.backends import CAPABILITIES
from ratchet.data_plane.batch import Group
from ratchet.data_plane.blocking import BlockingDataPlane, CallersLoop
from ratchet.data_plane.calls import Desk
from ratchet.data_plane.plane import StoragePlane
from ratchet.data_plane.storage import Cells, Storage, Wanted
from ratchet.rollouts.partition import PARTITION, TASK
from ratchet.spec.faults import RatchetError
from ratchet.spec.loading import load_spec

RECIPE = Path(__file__).parent.parent / "recipes" / "tiny-addition.yaml"
"""Of it only the data plane's section is looked at."""
ROUNDS, QUICK_ROUNDS = 15, 5
WARM_UP = 2
"""Rounds of every side that do not count."""
MB = 1e6
MEMCPY = 256 * 2**20
NAME = "benchmark"


@dataclass(slots=True)
class Clock:
    """Seconds since the last `take`, by part."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    async def timed(self, part: str, work: Awaitable[Any]) -> Any:
        began = time.perf_counter()
        try:
            return await work
        finally:
            self.seconds[part] += time.perf_counter() - began

    def take(self) -> dict[str, float]:
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken


class TimedStorage:
    """A Storage whose reads and writes are timed."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    async def write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[Any]:
        return await self._clock.timed("storage", self._storage.write(slots, cells))

    async def read(self, wanted: Sequence[Wanted]) -> list[Any]:
        return await self._clock.timed("storage", self._storage.read(wanted))

    async def erase(self, wanted: Sequence[Wanted]) -> None:
        await self._storage.erase(wanted)

    async def wipe(self) -> None:
        await self._storage.wipe()

    async def held(self) -> int | None:
        return await self._storage.held()

    async def ping(self) -> None:
        await self._storage.ping()

    def close(self) -> None:
        self._storage.close()


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one side, in seconds."""

    put_s: float
    get_s: float
    put_parts: dict[str, float] = field(default_factory=dict)
    get_parts: dict[str, float] = field(default_factory=dict)


class RatchetSide:
    """A session's data plane, reached as its engines do."""

    def __init__(self, backend: str, home: Path) -> None:
        import ray

        from workers.actors.base import SessionConfig
        from workers.actors.data_plane import DataPlaneActor, reach

        spec = load_spec(RECIPE, [f"data_plane.backend={backend}"])
        config = SessionConfig(f"{NAME}-{backend.replace('_', '-')}", 1, spec, str(home))
        made: Any = DataPlaneActor
        self._actor = made.options(num_cpus=0).remote(config)
        self._clock = Clock()
        self._loop = CallersLoop()
        try:
            endpoint: Any = ray.get(self._actor.start.remote(), timeout=120.0)
            reached = self._loop.run(reach(endpoint, NAME))
        except BaseException:
            self._end()
            raise
        self._close = reached.close

        def call(method: str, *arguments: Any) -> Awaitable[Any]:
            return self._clock.timed("ledger", reached.call(method, *arguments))

        def post(method: str, *arguments: Any) -> Awaitable[Any]:
            return self._clock.timed("ledger", reached.post(method, *arguments))

        self._plane = StoragePlane(
            Desk(call, post),
            TimedStorage(reached.storage, self._clock),
            CAPABILITIES[backend],
            NAME,
            reached.backend.eager,
        )
        self._blocking = BlockingDataPlane(self._plane, self._loop)

    def turn(self, groups: Sequence[Group]) -> Turn:
        """Raises RatchetError if other bytes come back."""
        keys = [group.key for group in groups]
        self._clock.take()
        began = time.perf_counter()
        self._blocking.put(PARTITION, groups)
        put_s, put_parts = time.perf_counter() - began, self._clock.take()
        began = time.perf_counter()
        got = self._blocking.fetch(PARTITION, TASK, NAME, keys)
        get_s, get_parts = time.perf_counter() - began, self._clock.take()
        if [group.key for group in got] != keys or _first(got) != _first(groups):
            raise RatchetError("what came back is not what was put")
        del got
        self._loop.run(self._plane.clear(PARTITION))
        return Turn(put_s, get_s, put_parts, get_parts)

    def close(self) -> None:
        async def closed() -> None:
            self._close()

        self._loop.run(closed())
        self._end()

    def _end(self) -> None:
        import ray

        self._loop.close()
        ray.kill(self._actor)


def _first(groups: Sequence[Group]) -> list[bytes]:
    """The arrays of the last group."""
    columns = groups[-1].columns
    return [column.values.tobytes() for column in columns.values() if isinstance(column.values, np.ndarray)]


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of one case over one backend."""

    case: Case
    num_bytes: int
    ratchet: Turn
    raw: Turn | None

    def rate(self, seconds: float) -> float:
        return self.num_bytes / seconds / MB

    @property
    def ratio(self) -> float | None:
        """Ratchet's rate over the library's, the worse of put and get."""
        if self.raw is None:
            return None
        return min(self.raw.put_s / self.ratchet.put_s, self.raw.get_s / self.ratchet.get_s)

    def told(self) -> dict[str, object]:
        put, get = (self.ratchet.put_s, self.ratchet.get_s)
        raw = self.raw
        return {
            "put_mb_s": round(self.rate(put), 1),
            "get_mb_s": round(self.rate(get), 1),
            "put_rows_s": round(self.case.rows / put),
            "get_rows_s": round(self.case.rows / get),
            "raw_put_mb_s": round(self.rate(raw.put_s), 1) if raw else None,
            "raw_get_mb_s": round(self.rate(raw.get_s), 1) if raw else None,
            "ratio_to_raw": round(self.ratio, 3) if self.ratio is not None else None,
            "put_ms": _milliseconds(put, self.ratchet.put_parts, "encode"),
            "get_ms": _milliseconds(get, self.ratchet.get_parts, "decode"),
        }

    def row(self, backend: str) -> list[str]:
        raw = self.raw
        put, get = self.told()["put_ms"], self.told()["get_ms"]
        return [
            f"{backend} {self.case.name}",
            *(f"{self.rate(seconds):.0f}" for seconds in (self.ratchet.put_s, self.ratchet.get_s)),
            *((f"{self.rate(seconds):.0f}" for seconds in (raw.put_s, raw.get_s)) if raw else ("-", "-")),
            *(f"{self.case.rows / seconds:.0f}" for seconds in (self.ratchet.put_s, self.ratchet.get_s)),
            f"{self.ratio:.2f}" if self.ratio is not None else "-",
            *(
                " + ".join(f"{ms:.1f}" for ms in parts.values())
                for parts in (put, get)
                if isinstance(parts, dict)
            ),
        ]


def _milliseconds(total: float, parts: dict[str, float], rest: str) -> dict[str, float]:
    """Where the time went: ledger, storage, and the rest, which is ours."""
    ledger, storage = parts.get("ledger", 0.0), parts.get("storage", 0.0)
    told = {"ledger": ledger, "storage": storage, rest: total - ledger - storage}
    return {name: round(1e3 * seconds, 2) for name, seconds in told.items()}


def measure(backend: str, address: str, home: Path, rounds: int, report: Report) -> list[Measured]:
    """Every case over one backend. Raises RatchetError with the reason if it cannot run here."""
    raw = RawSide(backend, address) if backend != "memory" else None
    try:
        ratchet = RatchetSide(backend, home)
        try:
            return [_case(case, ratchet, raw, rounds, report, backend) for case in CASES]
        finally:
            ratchet.close()
    finally:
        if raw:
            raw.close()


def _case(
    case: Case, ratchet: RatchetSide, raw: RawSide | None, rounds: int, report: Report, backend: str
) -> Measured:
    groups, num_bytes = ratchet_groups(case)
    ours: list[Turn] = []
    theirs: list[Turn] = []
    for number in range(WARM_UP + rounds):
        sides = [lambda: ours.append(ratchet.turn(groups))]
        if raw:
            sides.append(lambda raw=raw: theirs.append(Turn(*raw.turn(case))))
        for side in sides if number % 2 else reversed(sides):
            side()
    measured = Measured(case, num_bytes, _median(ours[WARM_UP:]), _median(theirs[WARM_UP:]) if raw else None)
    ratio = f", {measured.ratio:.2f} x the library" if measured.ratio is not None else ""
    put, get = measured.rate(measured.ratchet.put_s), measured.rate(measured.ratchet.get_s)
    report.progress(f"{backend} {case.name}: put {put:.0f}, get {get:.0f} MB/s{ratio}")
    return measured


def _median(turns: Sequence[Turn]) -> Turn:
    def parts(of: Callable[[Turn], dict[str, float]]) -> dict[str, float]:
        return {name: median(of(turn)[name] for turn in turns) for name in of(turns[0])}

    return Turn(
        median(turn.put_s for turn in turns),
        median(turn.get_s for turn in turns),
        parts(lambda turn: turn.put_parts),
        parts(lambda turn: turn.get_parts),
    )


def memcpy_mb_s(rounds: int) -> float:
    """One process copying memory that it has: the ceiling of everything that copies once."""
    source, target = np.ones(MEMCPY, np.uint8), np.zeros(MEMCPY, np.uint8)
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return MEMCPY / median(seconds) / MB


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A Ray cluster of this process: its address."""
    token = folder / "ray_token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    import ray

    # Cores are counted only so that the library's actors, which ask for some, find them.
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--backends", nargs="+", choices=list(CAPABILITIES), default=list(CAPABILITIES))
    parser.add_argument("--rounds", type=int, help=f"of every side (default {ROUNDS}, quick {QUICK_ROUNDS})")
    options = parser.parse_args()
    rounds: int = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    report = Report(options.json_only)
    found: dict[str, list[Measured]] = {}
    left_out: dict[str, str] = {}
    memcpy = memcpy_mb_s(rounds)
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder, cluster(Path(folder)) as address:
        for backend in options.backends:
            try:
                found[backend] = measure(backend, address, Path(folder), rounds, report)
            except Exception as error:  # whatever it is that this machine lacks: the others are measured
                left_out[backend] = (str(error).strip() or type(error).__name__).splitlines()[0]
                report.progress(f"{backend} is left out: {left_out[backend]}")
    report.publish(
        f"MB/s through the data plane, medians of {rounds} rounds in turns; memcpy {memcpy:.0f} MB/s",
        [
            *("", "put", "get", "raw put", "raw get", "rows/s put", "rows/s get", "x raw"),
            *("put ms: ledger + storage + encode", "get ms: ledger + storage + decode"),
        ],
        [measured.row(backend) for backend, cases in found.items() for measured in cases],
        {
            "benchmark": "data_plane",
            "backends": {
                backend: {measured.case.name: measured.told() for measured in cases}
                for backend, cases in found.items()
            },
            "left_out": left_out,
            "memcpy_mb_s": round(memcpy),
            "rounds": rounds,
        },
    )
    if not found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
