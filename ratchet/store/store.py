"""The store: what happened, in a database people can query."""

from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pydantic import JsonValue
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ratchet.spec import deadlines, names
from ratchet.spec.control import RecordRequest, RegisterRun
from ratchet.spec.state import RunPhase
from ratchet.store import outbox, reads, writes
from ratchet.store.engine import database_errors, for_reading, for_writing, open_engine
from ratchet.store.migrate import migrate
from ratchet.store.records import (
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    Glance,
    IncarnationRecord,
    RunRecord,
    StepRecord,
)


class Store:
    """Lineage of every run. Safe to share between threads, and its database between processes.

    Every method blocks, and raises Unavailable when the database is away, locked, full or damaged.
    """

    def __init__(self, url: str, *, busy_s: float = deadlines.STORE_BUSY) -> None:
        """`url`: see `engine.open_engine`; nothing is opened yet. `busy_s`: see deadlines.STORE_BUSY."""
        self._url = url
        self._engine = open_engine(url, busy_s)
        self._reader = for_reading(self._engine)
        self._writer = for_writing(self._engine)

    def migrate(self) -> None:
        """Make or upgrade the database; to be called once by whoever starts. See `migrate.migrate`."""
        engine = open_engine(self._url, deadlines.STORE_MIGRATE, deadlines.STORE_MAINTENANCE)
        try:
            migrate(engine)
        finally:
            engine.dispose()

    def close(self) -> None:
        """Close every connection; the next call opens new ones."""
        self._engine.dispose()

    @contextmanager
    def _session(self, engine: Engine) -> Generator[Session, None, None]:
        with database_errors(engine), Session(engine) as session, session.begin():
            yield session

    def reading(self) -> AbstractContextManager[Session]:
        """A transaction for what reads tables of its own."""
        return self._session(self._reader)

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction for what writes tables of its own: all of it or nothing."""
        return self._session(self._writer)

    # --- writes

    def register_run(
        self,
        request: RegisterRun,
        *,
        at: float,
        code: Mapping[str, str],
        inputs: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Write a run's row and open its incarnation; again: no effect. A newer incarnation reopens an ended
        run, and may come with another grpo.max_num_steps. `at`: epoch seconds; `code`: versions of what runs
        it, and `inputs`: digests of what it trains on; both are kept as they were the first time.

        Raises Conflict for another spec, another workflow, or an incarnation older than the newest.
        """
        with self._session(self._writer) as session:
            writes.register_run(session, request, at, code, inputs)
            outbox.tell_registered(session, request, at)

    def record(self, request: RecordRequest) -> None:
        """Write the rows of a request, all or none; again: no effect. An incarnation opens with the first
        thing recorded of it. The head (phase, step) follows the newest incarnation in the order of workflow
        time, and a final phase stays until a newer incarnation opens. What comes late of an older one, even
        the first that comes of it, is added and moves nothing.

        Raises Conflict when a key is taken by a row that says something else, NotOnRecord for an unknown run.
        """
        with self._session(self._writer) as session:
            writes.record(session, request)
            outbox.tell(session, request)

    # --- reads

    def get_run(self, run: str) -> RunRecord | None:
        with self._session(self._reader) as session:
            return reads.get_run(session, run)

    def list_runs(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        phases: Collection[RunPhase] = (),
        recipe: str | None = None,
    ) -> list[RunRecord]:
        """Newest first. `before`: the last run of the page before (Conflict if there is none);
        `phases`: only runs in one of these; empty: all. `recipe`: only runs of it."""
        with self._session(self._reader) as session:
            return reads.list_runs(session, limit, before, phases, recipe)

    def glance(self, run: RunRecord, *, incidents: int) -> Glance:
        """What a look at a run shows, in one transaction: its last step and checkpoint, its evaluations, and
        its newest few incidents."""
        with self._session(self._reader) as session:
            return reads.glance(session, run.id, run.step, names.TOPIC_INCIDENT, incidents)

    def incarnations(self, run: str) -> list[IncarnationRecord]:
        """By number."""
        with self._session(self._reader) as session:
            return reads.incarnations(session, run)

    def steps(self, run: str, *, since: int = 0) -> list[StepRecord]:
        """Steps after `since` of every incarnation, abandoned ones too, by (step, incarnation)."""
        with self._session(self._reader) as session:
            return reads.steps(session, run, since)

    def steps_on_path(self, run: str, *, since: int = 0) -> list[StepRecord]:
        """Steps after `since` that led to the head, in order."""
        with self._session(self._reader) as session:
            return reads.steps_on_path(session, run, since)

    def first_trained(self, run: str, *, since: int = 0) -> dict[int, int]:
        """Of every step after `since`, the first incarnation that trained it."""
        with self._session(self._reader) as session:
            return reads.first_trained(session, run, since)

    def checkpoints(self, run: str) -> list[CheckpointRecord]:
        """By (incarnation, step): the last one is the newest."""
        with self._session(self._reader) as session:
            return reads.checkpoints(session, run)

    def checkpoints_on_path(self, run: str) -> list[CheckpointRecord]:
        """Those that led to the head, by step. Retention may have deleted their files."""
        with self._session(self._reader) as session:
            return reads.checkpoints_on_path(session, run)

    def path(self, run: str) -> dict[int, int | None]:
        """The way back from the head: incarnation -> its last step on it (None: all), newest first."""
        with self._session(self._reader) as session:
            return reads.path(session, run)

    def evaluations(self, run: str) -> list[EvaluationRecord]:
        """By (incarnation, step)."""
        with self._session(self._reader) as session:
            return reads.evaluations(session, run)

    def evaluations_on_path(self, run: str) -> list[EvaluationRecord]:
        """Those of weights that led to the head, by step."""
        with self._session(self._reader) as session:
            return reads.evaluations_on_path(session, run)

    def incidents(self, run: str, *, last: int | None = None) -> list[EventRecord]:
        """What was lost and what was done about it, oldest first; only the `last` so many, if given."""
        return self.events_about(run, names.TOPIC_INCIDENT, last=last)

    def events_about(self, run: str, topic: str, *, last: int | None = None) -> list[EventRecord]:
        """Events of one topic, oldest first; only the `last` so many, if given."""
        with self._session(self._reader) as session:
            return reads.events_about(session, run, topic, last)

    def events(self, run: str | None = None, *, since: int = 0, limit: int = 1000) -> list[EventRecord]:
        """Events with an id above `since`, in order; of all runs, if none is named."""
        with self._session(self._reader) as session:
            return reads.events(session, run, since, limit)

    def notices(self, run: str | None = None, *, after: int, limit: int = 500) -> list[outbox.NoticeRecord]:
        """What was told of runs, with an id above `after`, in order; of all runs, if none is named."""
        with self.reading() as session:
            return outbox.notices(session, run, after, limit)

    def newest_notice(self) -> int:
        """The id of the newest notice; 0 if there is none."""
        with self.reading() as session:
            return outbox.newest(session)
