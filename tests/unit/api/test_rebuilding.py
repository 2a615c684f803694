"""The store is a projection: wiped, it is written again from histories and manifests."""

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from ratchet.artifacts.beginnings import keep_beginning
from ratchet.artifacts.manifest import FileEntry, Manifest, checkpoint_key, commit_manifest
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec import names
from ratchet.spec.faults import DataFault
from ratchet.spec.home import Home
from ratchet.spec.ids import OpKind, WeightVersion
from ratchet.spec.state import RunInput, RunPhase, RunState
from ratchet.spec.views import Problem, RebuildReport
from workers.testing.scripted import ScriptedStack

TABLES = ("evaluations", "checkpoints", "steps", "events", "incarnations", "runs")
NOT_TOLD = {("events", "id"), ("runs", "code"), ("runs", "inputs")}
"""The order over all runs, which code it was and what data lay there: histories do not say."""


def rows(home: Home, run: str) -> dict[str, list[dict[str, Any]]]:
    with contextlib.closing(sqlite3.connect(home.root / "store.db")) as raw:
        raw.row_factory = sqlite3.Row
        found: dict[str, list[dict[str, Any]]] = {}
        for table in TABLES:
            of_run = raw.execute(
                f"SELECT * FROM {table} WHERE {'id' if table == 'runs' else 'run'} = ?", (run,)
            )
            told = [{key: row[key] for key in row.keys() if (table, key) not in NOT_TOLD} for row in of_run]
            found[table] = sorted(told, key=repr)
        return found


def wipe(home: Home, run: str, tables: Sequence[str] = TABLES) -> None:
    with contextlib.closing(sqlite3.connect(home.root / "store.db")) as raw:
        raw.execute("INSERT INTO forgetting VALUES (?)", (run,))  # else the database keeps them
        for table in tables:
            raw.execute(f"DELETE FROM {table} WHERE {'id' if table == 'runs' else 'run'} = ?", (run,))
        raw.execute("DELETE FROM forgetting")
        raw.commit()


def report_of(response: httpx.Response) -> RebuildReport:
    assert response.status_code == 200, response.text
    return RebuildReport.model_validate_json(response.content)


async def test_every_row_comes_back_from_the_histories(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    stack.script.faults[OpKind.ROLLOUT_BATCH, 3] = [DataFault("prompt 5 cannot be scored")]
    spec = scripted_spec(
        4,
        checkpointing={"every": 1},
        evaluation={"num_problems": 4, "every": 2},
        runtime={"continue_as_new_every_steps": 1},
    )
    await launch(run, spec)
    await ended(run)
    await api.post(f"/v1/runs/{run}/resume")
    assert (await ended(run)).phase is RunPhase.COMPLETED
    await stack.client.get_workflow_handle(run).result()
    await api.post(f"/v1/runs/{run}/extend", json={"max_num_steps": 5})
    assert (await ended(run)).step == 5
    await stack.client.get_workflow_handle(run).result()

    before = rows(stack.home, run)
    assert [len(before[table]) for table in ("runs", "incarnations")] == [1, 3]
    wipe(stack.home, run)
    assert (await api.get(f"/v1/runs/{run}")).status_code == 404
    report = report_of(await api.post(f"/v1/runs/{run}/rebuild/store"))
    assert report.complete
    assert report.remarks == []
    assert report.found["executions"] >= 5
    assert rows(stack.home, run) == before

    report_of(await api.post(f"/v1/runs/{run}/rebuild/store"))
    assert rows(stack.home, run) == before


async def test_missing_rows_of_a_live_run_come_back_and_the_run_goes_on(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    hold = stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    await launch(run, scripted_spec(4, checkpointing={"every": 1}))
    await asyncio.wait_for(stack.script.began[OpKind.ROLLOUT_BATCH, 3].wait(), 30)
    while len(stack.store.checkpoints(run)) < 2:
        await asyncio.sleep(0.02)
    before = rows(stack.home, run)
    wipe(stack.home, run, ("checkpoints", "steps"))
    report_of(await api.post(f"/v1/runs/{run}/rebuild/store"))
    assert rows(stack.home, run) == before
    hold.set()
    assert (await ended(run)).phase is RunPhase.COMPLETED
    assert [row.step for row in stack.store.steps_on_path(run)] == [1, 2, 3, 4]


async def test_without_a_history_the_manifests_say_which_checkpoints_there_are(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, ended: Any, scripted_spec: Any
) -> None:
    artifacts = LocalArtifactStore(stack.home.artifacts)
    keep_beginning(artifacts, RunInput(spec=scripted_spec(3), state=RunState(run=run)))
    manifests = [committed(artifacts, run, *key) for key in ((1, 1), (1, 2), (2, 3))]
    report = report_of(await api.post(f"/v1/runs/{run}/rebuild/store"))
    assert not report.complete
    assert report.remarks == ["Temporal has no history of it: steps and evaluations cannot be rebuilt"]
    assert report.found == {"executions": 0, "records": 0, "checkpoints from manifests": 3}
    assert [
        (row.incarnation, row.step, row.cursor, row.digest, row.manifest_digest, row.num_bytes, row.path)
        for row in stack.store.checkpoints(run)
    ] == [
        (one.incarnation, one.step, one.cursor, one.state_digest, one.digest, one.num_bytes, str(folder))
        for one in manifests
        for folder in [artifacts.local_folder(one.key)]
    ]
    # And from there, it goes on.
    answer = await api.post(f"/v1/runs/{run}/extend", json={"max_num_steps": 4})
    assert answer.status_code == 202, answer.text
    view = await ended(run)
    assert (view.phase, view.step, view.incarnation) == (RunPhase.COMPLETED, 4, 3)


def committed(artifacts: LocalArtifactStore, run: str, incarnation: int, step: int) -> Manifest:
    """A checkpoint as the scripted engines write it."""
    folder = artifacts.local_folder(checkpoint_key(run, incarnation, step))
    folder.mkdir(parents=True)
    state = f"weights of {step}".encode()
    (folder / "state").write_bytes(state)
    digest = hashlib.sha256(state).hexdigest()
    manifest = Manifest(
        run=run,
        incarnation=incarnation,
        step=step,
        cursor=2 * step,
        version=WeightVersion(incarnation=incarnation, step=step, digest=state.decode()),
        state_digest=digest,
        base_model="m",
        spec_digest="s",
        created_at=1000.0 + step,
        files=(FileEntry(path="state", size=len(state), sha256=digest),),
    )
    commit_manifest(folder, manifest)
    return manifest


async def test_there_is_nothing_to_rebuild_an_unknown_run_from(api: httpx.AsyncClient, run: str) -> None:
    response = await api.post(f"/v1/runs/{run}/rebuild/store")
    assert response.status_code == 404
    assert "nothing to rebuild it from" in Problem.model_validate_json(response.content).detail
    assert (await api.post("/v1/runs/..%2Fetc/rebuild/store")).status_code == 404
    assert (await api.post("/v1/runs/No%20Good/rebuild/store")).status_code == 422


async def test_the_journal_holds_what_was_drawn_since_the_newest_checkpoint(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, scripted_spec: Any
) -> None:
    hold = stack.script.hold(OpKind.ROLLOUT_BATCH, 4)
    cut = scripted_spec(4, checkpointing={"every": 2}, runtime={"continue_as_new_every_steps": 1})
    await launch(run, cut)
    await asyncio.wait_for(stack.script.began[OpKind.ROLLOUT_BATCH, 4].wait(), 30)
    assert [row.step for row in stack.store.checkpoints(run)] == [2]
    assert [row.step for row in stack.store.steps(run)] == [1, 2, 3]
    journal = stack.home.run_folder(run) / "journal"
    write(journal, *range(5))
    partly = report_of(await api.post(f"/v1/runs/{run}/rebuild/data-plane"))
    assert (partly.complete, partly.found) == (False, {"drawn": 2, "in the journal": 1, "dropped": 0})
    assert "not finished, so that they are generated: prompts 5" in partly.remarks
    write(journal, 5, 6)
    whole = report_of(await api.post(f"/v1/runs/{run}/rebuild/buffer"))
    assert (whole.complete, whole.found) == (True, {"drawn": 3, "in the journal": 3, "dropped": 0})
    assert whole.remarks[0] == "prompts 4 to 6 were drawn since checkpoint 1-2"
    hold.set()
    await stack.client.get_workflow_handle(run).execute_update(names.UPDATE_STOP)


def write(journal: Path, *keys: int) -> None:
    version = WeightVersion(incarnation=1, step=0, digest="d")
    sample = Sample(
        tokens=np.array([1], dtype=np.int32),
        logprobs=np.array([-0.5], dtype=np.float32),
        mask=np.array([1], dtype=np.uint8),
        finish_reason="stop",
        text="7",
        reward=1.0,
        rewards={"reward": 1.0},
        correct=True,
        seed=0,
    )
    groups = [
        PromptGroup(
            key=key,
            incarnation=1,
            problem_id=str(key),
            prompt=np.array([2], dtype=np.int32),
            version_start=version,
            version_end=version,
            samples=(sample, sample),
        )
        for key in keys
    ]
    writer = JournalWriter(journal, f"generator-{keys[0]}")
    writer.adopt(1)
    writer.append(groups)
    writer.close()
