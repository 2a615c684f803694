"""How long the store takes to answer, with 10,000 runs and 1,000,000 steps: `python -m benchmarks.store`.

One run has 10,000 steps in ten incarnations, and a fork; the others share the rest. Rows come from one run
that the store wrote, multiplied by insertion into its tables, whose constraints and triggers hold for them
too. Questions go through `Store` and `Lineage`, as the API asks them.

JSON: `list_ms_p95` (50 runs, from any page, of any phase or of one), `show_ms_p95` (all that a run's page
needs), `lineage_ms_p95` (every step behind the newest checkpoint of the longest run and of its fork; all that
grew from one), of each `…_statements` (at most), `full_scans` (tables of many rows that
a question reads whole, by EXPLAIN: none).
"""

import argparse
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, Table, event, insert, literal_column, select, text

from benchmarks.report import Report, arguments, percentile
from ratchet.spec import names
from ratchet.spec.control import (
    AnyEntry,
    CheckpointEntry,
    EvaluationEntry,
    EventEntry,
    IncarnationEntry,
    RecordRequest,
    RegisterRun,
    StepEntry,
)
from ratchet.spec.faults import Incident
from ratchet.spec.ids import WeightVersion
from ratchet.spec.receipts import (
    CheckpointReceipt,
    EvaluateReceipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    TrainReceipt,
)
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec
from ratchet.spec.state import RunPhase
from ratchet.store import Lineage, Store
from ratchet.store.engine import open_engine
from ratchet.store.maintenance import vacuum
from ratchet.store.models import Base, Checkpoint, Evaluation, Event, Incarnation, Run, Step
from ratchet.store.standing import Standings
from workers.testing.postgres import PostgresServer

TEMPLATE, LONGEST, FORK = "template", "longest", "fork"
LIVES = 10
PROMPTS = 8
PHASES = (RunPhase.COMPLETED, RunPhase.FAILED, RunPhase.STOPPED, RunPhase.RUNNING)
BIG = {"steps", "events", "checkpoints", "evaluations", "outbox"}
"""Tables whose rows grow with the steps; the planner may well read the few lives of all runs at once."""
SPEC = RunSpec(
    name="benchmark",
    policy=PolicySpec(model="tiny"),
    generation=GenerationSpec(max_new_tokens=5),
    grpo=GrpoSpec(num_prompts_per_step=PROMPTS, num_generations_per_prompt=8, max_num_steps=10_000),
    environment=EnvironmentSpec(name="arithmetic"),
)
Columns = dict[str, Any]


@dataclass(frozen=True)
class Size:
    runs: int
    steps: int
    longest: int
    """Steps of the longest run."""
    asked: int
    """How often each question is asked."""

    @property
    def life(self) -> int:
        """Steps of each incarnation of the longest run."""
        return self.longest // LIVES

    @property
    def each(self) -> int:
        """Steps of every other run."""
        return (self.steps - self.longest) // self.runs


FULL = Size(runs=10_000, steps=1_000_000, longest=10_000, asked=200)
QUICK = Size(runs=1_000, steps=50_000, longest=2_000, asked=50)


def fill(store: Store, engine: Engine, size: Size) -> None:
    """Rows for everything, from those of one run of one step."""
    registered = RegisterRun(run=TEMPLATE, spec=SPEC, workflow_run_id=TEMPLATE, incarnation=1)
    store.register_run(registered, at=0.0, code={"torch": "2.13.0", "python": "3.11"})
    store.record(RecordRequest(run=TEMPLATE, incarnation=1, at=1.0, entries=_entries()))
    with engine.begin() as connection:
        lives = _lives(size)
        _insert(connection, Run, [_head(number, run, size) for number, run in enumerate(_runs(size), 1)])
        _insert(connection, Incarnation, lives)
        _multiply_steps(connection, size)
        _insert(connection, Checkpoint, list(_every(lives, size, max(size.life // 10, 1))))
        _insert(connection, Evaluation, list(_every(lives, size, size.life)))
        owners = ({"run": life["run"], "incarnation": life["number"], "key": "incident/1"} for life in lives)
        _insert(connection, Event, list(owners))
    vacuum(engine)


def _runs(size: Size) -> list[str]:
    return [*(f"run-{number}" for number in range(size.runs - 2)), FORK, LONGEST]


def _head(number: int, run: str, size: Size) -> Columns:
    phase = PHASES[number % len(PHASES)]
    steps, lives = (size.longest, LIVES) if run == LONGEST else (size.each, 1)
    ended = float(number + 1) if phase.final else None
    times = {"created_at": float(number), "updated_at": float(number), "ended_at": ended}
    return {"id": run, "workflow_run_id": run, "phase": phase, "step": steps, "incarnation": lives, **times}


def _lives(size: Size) -> list[Columns]:
    """The longest run grew nine times from its newest checkpoint, and the fork from its last one."""
    lives: list[Columns] = [{"run": run, "number": 1} for run in _runs(size)[:-2]]
    lives.append({"run": LONGEST, "number": 1})
    lives += [
        {"run": LONGEST, "number": life + 1, **_grown(life, life * size.life)} for life in range(1, LIVES)
    ]
    return [*lives, {"run": FORK, "number": 1, **_grown(LIVES, size.longest)}]


def _grown(incarnation: int, step: int) -> Columns:
    path = f"/artifacts/runs/{LONGEST}/checkpoints/{incarnation}-{step}"
    parent = {"parent_run": LONGEST, "parent_incarnation": incarnation}
    return {"restored_step": step, "from_checkpoint": path, **parent}


def _every(lives: list[Columns], size: Size, steps: int) -> Iterator[Columns]:
    """Keys of rows for every so many steps of the longest run, and for the last step of each other one."""
    for life in lives:
        first = life.get("restored_step", 0)
        count, every = (size.life, steps) if life["run"] == LONGEST else (size.each, size.each)
        for step in range(first + every, first + count + 1, every):
            yield {"run": life["run"], "incarnation": life["number"], "step": step}


def _insert(connection: Connection, table: type[Base], rows: list[Columns]) -> None:
    """Insert rows that are the template's but for these columns."""
    of = cast(Table, table.__table__)
    key = of.c["id" if table is Run else "run"]
    template = dict(connection.execute(select(of).where(key == TEMPLATE)).one()._mapping)
    if table is Event:
        del template["id"]
    connection.execute(insert(table), [template | row for row in rows])


def _multiply_steps(connection: Connection, size: Size) -> None:
    """The template's step, for as many steps of every incarnation as it has."""
    steps, life = cast(Table, Step.__table__), cast(Table, Incarnation.__table__).alias("life")
    step = "(COALESCE(life.restored_step, 0) + n.n)"
    changed = {
        "run": "life.run",
        "incarnation": "life.number",
        "step": step,
        "cursor_start": f"({step} - 1) * {PROMPTS}",
        "cursor_end": f"{step} * {PROMPTS}",
        "rollout_incarnation": "life.number",
        "rollout_step": f"{step} - 1",
    }
    chosen = [literal_column(changed.get(column.name, f"steps.{column.name}")) for column in steps.columns]
    many = f"CASE life.run WHEN '{LONGEST}' THEN {size.life} ELSE {size.each} END"
    numbers = text(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n "
        f"WHERE n < {max(size.life, size.each)}) SELECT n FROM n"
    ).columns(literal_column("n")).subquery("n")  # fmt: skip
    query = (
        select(*chosen)
        .select_from(steps.join(life, life.c.run != TEMPLATE).join(numbers, text(f"n.n <= {many}")))
        .where(steps.c.run == TEMPLATE)
    )
    connection.execute(insert(steps).from_select([column.name for column in steps.columns], query))


def questions(store: Store, size: Size) -> dict[str, Callable[[random.Random], object]]:
    """What the API asks, about something else every time."""
    lineage, standings = Lineage(store), Standings(store)
    runs, now = _runs(size), float(size.runs + 1)

    def listed(chance: random.Random) -> object:
        phases = chance.choice([(), (RunPhase.RUNNING,), (RunPhase.FAILED, RunPhase.STOPPED)])
        found = store.list_runs(limit=51, before=chance.choice([None, *runs]), phases=phases)
        return standings.of(found, now=now)

    def shown(chance: random.Random) -> object:
        record = store.get_run(chance.choice([LONGEST, FORK, *runs[:8]]))
        assert record is not None
        return store.glance(record, incidents=5), standings.of([record], now=now)

    def traced(chance: random.Random) -> object:
        middle = chance.randrange(1, LIVES)
        return chance.choice(
            [
                lambda: lineage.up(LONGEST, LIVES, size.longest),
                lambda: lineage.up(FORK, 1, size.longest + size.each),
                lambda: lineage.down(LONGEST, middle, middle * size.life),
            ]
        )()

    return {"list": listed, "show": shown, "lineage": traced}


def look_into(engine: Engine, ask: Callable[[], object]) -> tuple[int, set[str]]:
    """How many statements a question takes, and which tables of many rows they read whole, as planned."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, values: Any, *_rest: object) -> None:
        asked.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    ask()
    event.remove(engine, "before_cursor_execute", note)
    explain, scan = ("EXPLAIN ", r"Seq Scan on (\w+)")
    if engine.dialect.name == "sqlite":
        explain, scan = ("EXPLAIN QUERY PLAN ", r"SCAN (\w+)(?! USING)")
    found: set[str] = set()
    with engine.connect() as connection:
        for statement, values in asked:
            if "SELECT" in statement:
                plan = connection.exec_driver_sql(explain + statement, values)
                found |= {name for row in plan for name in re.findall(scan, str(row[-1]))}
    return sum("SELECT" in statement for statement, _ in asked), found & BIG


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """The one that is named, or a server of this benchmark's own."""
    if url == "sqlite":
        with tempfile.TemporaryDirectory(prefix="ratchet-store-") as folder:
            yield f"sqlite:///{Path(folder) / 'store.db'}"
    elif url:
        yield url
    else:
        with PostgresServer() as server:
            yield server.url()


def measure(url: str, size: Size, report: Report) -> dict[str, Any]:
    """Fill an empty database, and ask it."""
    store = Store(url)
    store.migrate()
    loader = open_engine(url, 600.0)
    begun = time.perf_counter()
    fill(store, loader, size)
    report.progress(f"filled in {time.perf_counter() - begun:.0f} s")
    chance = random.Random(7)
    answer: dict[str, Any] = {"runs": size.runs, "steps": size.steps, "database": loader.dialect.name}
    scanned: set[str] = set()
    for name, ask in questions(store, size).items():
        ask(chance)
        times: list[float] = []
        for _ in range(size.asked):
            begun = time.perf_counter()
            ask(chance)
            times.append(1000 * (time.perf_counter() - begun))
        for quantile in (0.5, 0.95):
            answer[f"{name}_ms_p{quantile * 100:.0f}"] = round(percentile(times, quantile), 2)
        looks = [look_into(store._engine, lambda ask=ask: ask(chance)) for _ in range(6)]
        answer[f"{name}_statements"] = max(statements for statements, _ in looks)
        scanned = scanned.union(*(tables for _, tables in looks))
    store.close()
    loader.dispose()
    return answer | {"full_scans": sorted(scanned)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--database", help="`sqlite`, or the URL of an empty one; else a PostgreSQL of its own"
    )
    options: argparse.Namespace = parser.parse_args()
    size = QUICK if options.quick else FULL
    report = Report(options.json_only)
    report.progress(f"{size.runs} runs and {size.steps} steps …")
    with database(options.database) as url:
        answer = measure(url, size, report)
    rows = [
        [name, f"{answer[f'{name}_ms_p50']:.1f}", f"{answer[f'{name}_ms_p95']:.1f}"]
        for name in ("list", "show", "lineage")
    ]
    report.publish(
        f"Answers in ms, {answer['database']}, {size.runs} runs, {size.steps} steps",
        ["", "p50", "p95"],
        rows,
        {"benchmark": "store", **answer},
    )


def _entries() -> tuple[AnyEntry, ...]:
    """One row of every kind."""
    before, after = (WeightVersion(incarnation=1, step=step, digest=str(step) * 32) for step in (0, 1))
    metrics = {"loss": 0.1, "grad_norm": 0.7, "learning_rate": 5e-6, "logprob_error": 1e-6, "entropy": 1.25}
    restored = RestoreReceipt(op="", version=before, checkpoint=None, num_parameters=1, model_digest="base")
    rollout = RolloutReceipt(
        op="", version=before, cursor_start=0, cursor_end=PROMPTS, num_groups=PROMPTS, num_samples=64,
        num_tokens=400, replayed_groups=0, reward_mean=0.5, reward_std=0.5, accuracy=0.5, length_mean=6.0,
        truncated_fraction=0.0, samples_generated=64,
    )  # fmt: skip
    trained = TrainReceipt(
        op="", version=after, cursor_start=0, cursor_end=PROMPTS, num_groups=PROMPTS, num_tokens=400,
        zero_advantage_groups=0, optimizer_steps=1, metrics=metrics,
    )  # fmt: skip
    moved = RefitReceipt(op="", version=after, mover="ipc", num_tensors=9, num_bytes=99, wire_digest="w")
    saved = CheckpointReceipt(
        op="", version=after, path="/artifacts/x", digest="d" * 64, manifest_digest="m" * 64, num_bytes=99,
        num_files=3, write_s=0.1,
    )  # fmt: skip
    seen = EvaluateReceipt(
        op="", version=after, num_problems=128, accuracy=0.5, reward_mean=0.5, length_mean=6.0
    )
    lost = Incident(
        lost="generator", cause="its process is gone", detected_at=1.5, done="replaced", seconds=0.3
    )
    return (
        IncarnationEntry(receipt=restored),
        StepEntry(step=1, started_at=1.0, finished_at=2.0, rollout=rollout, train=trained, refit=moved),
        CheckpointEntry(step=1, cursor=PROMPTS, receipt=saved),
        EvaluationEntry(step=1, receipt=seen),
        EventEntry(
            key="incident/1",
            topic=names.TOPIC_INCIDENT,
            message=str(lost),
            data=lost.model_dump(mode="json"),
        ),
    )


if __name__ == "__main__":
    main()
