"""What has to hold of a run, whatever was struck. An oracle says what is wrong; nothing, if all is well."""

from collections.abc import Callable, Iterator

from benchmarks.chaos.evidence import Evidence
from ratchet.spec.ids import OpKind
from ratchet.spec.ranges import keys_of
from ratchet.spec.receipts import TrainReceipt
from ratchet.spec.state import RunPhase
from ratchet.store.records import StepRecord

STARTED_ONCE = (OpKind.ROLLOUT_BATCH, OpKind.TRAIN_STEP, OpKind.REFIT, OpKind.SNAPSHOT)
"""A commit may start again when there was no room for it; it has no effect but its manifest."""


def hit(evidence: Evidence) -> Iterator[str]:
    """Every strike was carried out at its moment."""
    yield from evidence.missed


def ended(evidence: Evidence) -> Iterator[str]:
    """The run completed."""
    run = evidence.run
    if run is None:
        yield "the run never came into the store"
    elif run.phase is not RunPhase.COMPLETED:
        fault = f": {run.fault.kind.value}: {run.fault.message}" if run.fault else ""
        yield f"it is {run.phase.value} at step {run.step}{fault}"


def digest(evidence: Evidence) -> Iterator[str]:
    """The final weights, optimizer and random state are those of a run that nobody touched, bit for bit."""
    if evidence.digest is None:
        yield f"no intact checkpoint of step {evidence.steps}"
    elif evidence.expected_digest not in (None, evidence.digest):
        yield f"it ended in {evidence.digest[:12]}, undisturbed it is {evidence.expected_digest[:12]}"


def ledger(evidence: Evidence) -> Iterator[str]:
    """Every drawn prompt was finished, and trained exactly once on the way to the head. Where steps take what
    is finished: of those that the run is done with, each was trained once, or says that it was too old."""
    of_step = [_positions(evidence, row) for row in evidence.path]
    trained = [key for keys in of_step for key in keys]
    if twice := sorted({key for key in trained if trained.count(key) > 1}):
        yield f"trained more than once: {twice}"
    if unknown := sorted(set(trained) - set(evidence.journal)):
        yield f"trained and not in the journal: {unknown}"
    for row, keys in zip(evidence.path, of_step, strict=True):
        if row.num_groups != len(keys):
            yield f"step {row.step} trained {row.num_groups} groups of {keys}"
    if not evidence.streamed:
        drawn = set(range(evidence.steps * evidence.prompts)) | set(evidence.journal)
        if never := sorted(drawn - set(trained)):
            yield f"drawn and never trained: {never}"
        return
    told = [keys_of((*each.evicted, *each.given_up)) for each in evidence.streamed.values()]
    thrown = {key for keys in told for key in keys}
    if both := sorted(thrown & set(trained)):
        yield f"trained, and thrown away: {both}"
    if lost := sorted(evidence.over ^ (thrown | set(trained))):
        yield f"done with, and neither trained nor thrown away, or the other way round: {lost}"


def _positions(evidence: Evidence, row: StepRecord) -> list[int]:
    receipt = evidence.streamed.get((row.incarnation, row.step))
    return list(keys_of(receipt.trained) if receipt else range(row.cursor_start, row.cursor_end))


def staleness(evidence: Evidence) -> Iterator[str]:
    """No group was trained that was older than the window."""
    for receipt in evidence.streamed.values():
        if (oldest := receipt.metrics["staleness_max"]) > evidence.max_staleness:
            yield f"{receipt.op} trained on a group {oldest:.0f} steps old, not {evidence.max_staleness}"


def steps(evidence: Evidence) -> Iterator[str]:
    """As many optimizer steps as receipts, and nothing was begun twice."""
    if [row.step for row in evidence.path] != list(range(1, evidence.steps + 1)):
        yield f"on the path are steps {[row.step for row in evidence.path]}, not 1 to {evidence.steps}"
    for done in evidence.history.operations:
        if done.op.kind in STARTED_ONCE and done.receipt.starts > 1 and not done.receipt.recovered:
            yield f"{done.op} was begun {done.receipt.starts} times"
    counted, incarnation = 0, 1
    for done in evidence.history.operations:
        if not isinstance(done.receipt, TrainReceipt):
            continue
        count, fresh = done.receipt.optimizer_steps, done.op.incarnation > incarnation
        # A new incarnation may have a new trainer, which counts from one. One that lives on has a receipt for
        # each of its steps.
        if count != counted + 1 and not (fresh and count == 1):
            yield f"{done.op} is the trainer's optimizer step {count}, after receipts for {counted}"
        counted, incarnation = count, done.op.incarnation


def regenerated(evidence: Evidence) -> Iterator[str]:
    """No finished prompt group was generated again."""
    if again := regenerated_groups(evidence):
        yield f"generated again although finished: {again}"


def orphans(evidence: Evidence) -> Iterator[str]:
    """Nothing of the session is left."""
    yield from evidence.leftovers


def agreement(evidence: Evidence) -> Iterator[str]:
    """The store says what the history says."""
    yield from evidence.disagreements


def nobody(evidence: Evidence) -> Iterator[str]:
    """Nobody did anything to the run but launch it."""
    yield from evidence.history.actions


ORACLES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    oracle.__name__: oracle
    for oracle in (hit, ended, digest, ledger, staleness, steps, regenerated, orphans, agreement, nobody)
}


def judge(evidence: Evidence) -> dict[str, list[str]]:
    """What is wrong, by the oracle that says so."""
    found = {name: list(oracle(evidence)) for name, oracle in ORACLES.items()}
    return {name: problems for name, problems in found.items() if problems}


def regenerated_groups(evidence: Evidence) -> list[int]:
    """Keys of groups that were durable, and have been written again."""
    return sorted(key for key, records in evidence.journal.items() if records > 1)
