"""What an operator does to a store: look whether it is sound, forget old runs, give space back."""

from collections.abc import Iterator

from sqlalchemy import Connection, Engine, Select, and_, delete, func, select, text
from sqlalchemy.orm import Session, aliased

from ratchet.spec.state import RunPhase
from ratchet.store.engine import database_errors, for_writing
from ratchet.store.migrate import revisions
from ratchet.store.models import Checkpoint, Evaluation, Event, Forgetting, Incarnation, Run, Step
from ratchet.store.outbox import Notice
from ratchet.store.sink_positions import SinkPosition

_FINAL = [phase for phase in RunPhase if phase.final]
_OF_A_RUN = (SinkPosition, Notice, Event, Evaluation, Checkpoint, Step, Incarnation)
"""In the order in which they may be deleted."""


def check(engine: Engine) -> list[str]:
    """What is wrong with a database, a line each with the fix; nothing, if it is sound."""
    found, newest = revisions(engine)
    if found != newest:
        return [f"its revision is {found or 'none'}, not {newest}: run `ratchet store migrate`"]
    with database_errors(engine), engine.connect() as connection:
        return [*_damage(connection), *_contradictions(connection)]


def _damage(connection: Connection) -> Iterator[str]:
    """What the database itself finds; a Postgres server keeps checksums, and needs no asking."""
    if connection.dialect.name != "sqlite":
        return
    for (line,) in connection.execute(text("PRAGMA integrity_check")):
        if line != "ok":
            yield f"{line}: restore a copy, or move the file away and `ratchet rebuild store` every run"
    for table, _, other, _ in connection.execute(text("PRAGMA foreign_key_check")):
        yield f"a row of {table} points to no row of {other}: `ratchet rebuild store` its run"


def _contradictions(connection: Connection) -> Iterator[str]:
    lives = select(Incarnation.run, func.max(Incarnation.number).label("newest")).group_by(Incarnation.run)
    newest = lives.subquery()
    heads = select(Run.id, Run.incarnation, newest.c.newest).outerjoin(newest, newest.c.run == Run.id)
    for run, head, last in connection.execute(heads.where(Run.incarnation.is_distinct_from(newest.c.newest))):
        yield f"run {run} is at incarnation {head}, its newest one is {last}: `ratchet rebuild store {run}`"
    of_life = and_(Step.run == Incarnation.run, Step.incarnation == Incarnation.number)
    early = select(Step.run, Step.incarnation, func.min(Step.step)).join(Incarnation, of_life)
    early = early.where(Step.step <= Incarnation.restored_step).group_by(Step.run, Step.incarnation)
    for run, incarnation, step in connection.execute(early):
        yield f"incarnation {incarnation} of run {run} has a step {step} from before it began"
    orphans = select(Incarnation.run, Incarnation.number, Incarnation.parent_run)
    orphans = orphans.outerjoin(Run, Run.id == Incarnation.parent_run)
    for run, number, parent in connection.execute(
        orphans.where(Incarnation.parent_run.is_not(None), Run.id.is_(None))
    ):
        yield f"incarnation {number} of run {run} grew from run {parent}: `ratchet rebuild store {parent}`"


def forget(engine: Engine, ended_before: float) -> list[str]:
    """Delete what is known of the runs that ended before a time (epoch seconds): their ids. A run stays while
    one that stays grew from it, so that lineage has no holes. Artifacts and workflow histories stay too, and
    a run can be rebuilt from them."""
    forgotten: list[str] = []
    with database_errors(engine):
        while chosen := _forgettable(engine, ended_before):
            forgotten += [run for run in chosen if _forget(engine, run)]
            if not set(chosen) <= set(forgotten):
                break  # one was resumed meanwhile
    return forgotten


def _forgettable(engine: Engine, ended_before: float) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(_ended(ended_before)))


def _ended(before: float) -> Select[str]:
    child = aliased(Incarnation)
    grown = select(child.run).where(child.parent_run == Run.id, child.run != Run.id)
    return (
        select(Run.id).where(Run.phase.in_(_FINAL), Run.ended_at < before, ~grown.exists()).order_by(Run.id)
    )


def _forget(engine: Engine, run: str) -> bool:
    with Session(for_writing(engine)) as session, session.begin():
        head = session.get(Run, run, with_for_update=True)
        if head is None or not head.phase.final:
            return False
        session.add(Forgetting(run=run))
        session.flush()
        for table in _OF_A_RUN:
            session.execute(delete(table).where(table.run == run))
        session.execute(delete(Run).where(Run.id == run))
        session.execute(delete(Forgetting).where(Forgetting.run == run))
    return True


def vacuum(engine: Engine) -> None:
    """Give the space of deleted rows back, and refresh what the planner knows."""
    with database_errors(engine), engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("COMMIT")  # a vacuum is its own transaction
            for statement in ("VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"):
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("BEGIN")
        else:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(text("VACUUM (ANALYZE)"))
