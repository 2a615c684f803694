"""What a run has left behind, for the oracles to judge."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.history import RunHistory, read_history
from benchmarks.chaos.leftovers import lasting_leftovers
from benchmarks.chaos.table import Strike
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import verify_files
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.journal.segment import list_incarnations, list_segments, scan
from ratchet.spec.home import Home
from ratchet.spec.ranges import keys_of
from ratchet.spec.receipts import TrainReceipt
from ratchet.spec.run_spec import RunSpec
from ratchet.store import Store
from ratchet.store.rebuild import replay
from ratchet.store.records import EventRecord, RunRecord, StepRecord


@dataclass(slots=True)
class Blow:
    """A strike that was carried out."""

    strike: Strike
    at: float
    """Seconds since the epoch."""
    pid: int | None
    """Of the process that was struck."""
    at_moment: bool = True
    """Somebody was held there meanwhile; else the seed had chosen the time."""
    back_at: float | None = None
    """When another one had taken over, or the ill was gone."""
    trainer: int | None = None
    """Pid of the trainer that went with it, if a head was struck."""
    rebuilt_at: float | None = None
    """When there was another one of those."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known of a run, after its end."""

    run: RunRecord | None
    steps: int
    """Optimizer steps it was to make."""
    prompts: int
    """Prompt groups of a step."""
    digest: str | None
    """Of its final checkpoint, which is intact; None: there is none."""
    expected_digest: str | None
    """None: this is the run that others are held against."""
    path: list[StepRecord]
    journal: Mapping[int, int]
    """How many records there are of each finished group, over all segments, sealed or not."""
    history: RunHistory
    incidents: list[EventRecord]
    blows: list[Blow]
    missed: list[str] = field(default_factory=list)
    """Moments that nobody came to."""
    leftovers: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    """Between the store, and one that was told the same by the history."""
    streamed: Mapping[tuple[int, int], TrainReceipt] = field(default_factory=dict)
    """Of steps on the path that took groups in as they were finished, by incarnation and step."""
    over: set[int] = field(default_factory=set)
    """Positions that the run is done with, as its final checkpoint says."""
    max_staleness: int = 0


def gather(
    home: Home,
    store: Store,
    mirror: Store,
    run: str,
    spec: RunSpec,
    expected_digest: str | None,
    blows: list[Blow],
    missed: list[str],
) -> Evidence:
    """Look at everything, once the run has ended or was given up. `mirror`: an empty store."""
    history = asyncio.run(read_history(home, run))
    record, path = store.get_run(run), store.steps_on_path(run)
    steps = spec.grpo.max_num_steps
    return Evidence(
        run=record,
        steps=steps,
        prompts=spec.grpo.num_prompts_per_step,
        digest=_final_digest(home, run, steps),
        expected_digest=expected_digest,
        path=path,
        journal=journaled(home, run),
        history=history,
        incidents=store.incidents(run),
        blows=blows,
        missed=missed,
        leftovers=lasting_leftovers(home) if record and record.phase.final else [],
        disagreements=_disagreements(store, mirror, run, history),
        streamed=_streamed(history, path),
        over=_over(home, run),
        max_staleness=spec.asynchronous.max_staleness if spec.asynchronous else 0,
    )


def _streamed(history: RunHistory, path: Sequence[StepRecord]) -> dict[tuple[int, int], TrainReceipt]:
    steps = {(row.incarnation, row.step) for row in path}
    receipts = [done.receipt for done in history.operations if isinstance(done.receipt, TrainReceipt)]
    found = {(each.version.incarnation, each.version.step): each for each in receipts if each.trained}
    return {step: receipt for step, receipt in found.items() if step in steps}


def journaled(home: Home, run: str) -> Counter[int]:
    """Records of each finished group on disk, by its key."""
    folder = home.run_folder(run) / "journal"
    return Counter(
        key
        for incarnation in list_incarnations(folder)
        for segment in list_segments(folder, incarnation)
        for span in scan(segment.path(folder))
        if span.cause is None
        for key in span.keys
    )


def _final_digest(home: Home, run: str, steps: int) -> str | None:
    manifests, _ = list_manifests(LocalArtifactStore(home.artifacts), run)
    newest = manifests[0] if manifests else None
    if newest is None or newest.step != steps or verify_files(home.artifacts / newest.key, newest):
        return None
    return newest.state_digest


def _over(home: Home, run: str) -> set[int]:
    manifests, _ = list_manifests(LocalArtifactStore(home.artifacts), run)
    return {*range(manifests[0].cursor), *keys_of(manifests[0].finished)} if manifests else set()


def _disagreements(store: Store, mirror: Store, run: str, history: RunHistory) -> list[str]:
    replay(mirror, history.told)
    kept, told = _rows(store, run), _rows(mirror, run)
    return [
        f"{table} {key}: {column} is {kept[table].get(key, {}).get(column)!r} in the store, "
        f"{told[table].get(key, {}).get(column)!r} in the history"
        for table in kept
        for key in sorted(kept[table].keys() | told[table].keys())
        for column in (told[table].get(key) or kept[table][key])
        if kept[table].get(key, {}).get(column) != told[table].get(key, {}).get(column)
    ]


def _rows(store: Store, run: str) -> dict[str, dict[str, dict[str, object]]]:
    """All rows about a run, by table and key. Neither numbers of events nor digests of code and data are told
    by histories."""
    record = store.get_run(run)
    return {
        "runs": {run: record.model_dump(exclude={"code", "inputs"})} if record else {},
        "incarnations": {str(row.number): row.model_dump() for row in store.incarnations(run)},
        "steps": {f"{row.incarnation}-{row.step}": row.model_dump() for row in store.steps(run)},
        "checkpoints": {f"{row.incarnation}-{row.step}": row.model_dump() for row in store.checkpoints(run)},
        "evaluations": {f"{row.incarnation}-{row.step}": row.model_dump() for row in store.evaluations(run)},
        "events": {
            f"{row.incarnation}-{row.key}": row.model_dump(exclude={"id"}) for row in store.events(run)
        },
    }


def empty_store(folder: Path) -> Store:
    """A store with its tables and nothing in them."""
    store = Store(f"sqlite:///{folder / 'mirror.db'}")
    store.migrate()
    return store
