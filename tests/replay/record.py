"""Record the golden histories anew: `python tests/replay/record.py [NAME...]`, then look at the diff.

One history for each path of a run that has a name. Needed after a change that is meant to alter them.
"""

import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle

from ratchet.spec import names
from ratchet.spec.admission import Limit
from ratchet.spec.control import ExtendRequest, HyperparametersRequest, SessionRequest
from ratchet.spec.faults import ActorLost, DataFault, InfraFault, StorageFault
from ratchet.spec.ids import OpKind
from ratchet.spec.receipts import Recovered
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import ForkOrigin, RunPhase, RunState, RunStatus
from workers.testing.replay import Golden, load_history, record_commands, save_history, write_snapshot
from workers.testing.scripted import ScriptedStack, scripted_stack
from workers.testing.servers import dev_server

HISTORIES = Path(__file__).parent.parent / "histories"
HOME = Path(tempfile.gettempdir()) / "ratchet-golden"
"""Paths in it become part of the histories: the same ones every time."""
DEADLINE = 60.0

LOST = ActorLost("the trainer died", role="trainer")

Handle = WorkflowHandle[object, object]


def spec(steps: int, **sections: dict[str, object]) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "golden",
            "policy": {"model": "none", "train_micro_batch_size": 2},
            "generation": {"max_new_tokens": 4},
            "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": steps},
            "environment": {"name": "arithmetic"},
            "evaluation": {"num_problems": 4},
            "checkpointing": {"every": 2},
            **sections,
        }
    )


async def _ended(handle: Handle) -> None:
    try:
        await asyncio.wait_for(handle.result(), DEADLINE)
    except Exception as error:
        if type(error).__name__ != "WorkflowFailureError":
            raise


async def _in_phase(stack: ScriptedStack, run: str, phase: RunPhase) -> None:
    async with asyncio.timeout(DEADLINE):
        handle = stack.client.get_workflow_handle(run)
        while (await handle.query(names.QUERY_STATUS, result_type=RunStatus)).phase is not phase:
            await asyncio.sleep(0.05)


async def happy(stack: ScriptedStack) -> None:
    """Three steps, evaluated before and after, with one checkpoint on the way and one at the end."""
    await _ended(await stack.start(spec(3), "happy"))


async def pause_resume(stack: ScriptedStack) -> None:
    """Paused during step 1, resumed, completed."""
    train = stack.script.hold(OpKind.TRAIN_STEP, 1)
    handle = await stack.start(spec(2), "pause-resume")
    await stack.script.began[OpKind.TRAIN_STEP, 1].wait()
    await handle.execute_update(names.UPDATE_PAUSE, id="pause", result_type=RunStatus)
    train.set()
    await _in_phase(stack, "pause-resume", RunPhase.PAUSED)
    await handle.execute_update(names.UPDATE_RESUME, id="resume", result_type=RunStatus)
    await _ended(handle)


async def stop_in_rollout(stack: ScriptedStack) -> None:
    """Stopped while step 2 rolls out: the rollout is given up."""
    stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(spec(3), "stop-in-rollout")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait()
    await handle.execute_update(names.UPDATE_STOP, id="stop", result_type=RunStatus)
    await _ended(handle)


async def stop_in_training(stack: ScriptedStack) -> None:
    """Stopped while step 2 trains: the step is finished."""
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(spec(3), "stop-in-training")
    await stack.script.began[OpKind.TRAIN_STEP, 2].wait()
    await handle.execute_update(names.UPDATE_STOP, id="stop", result_type=RunStatus)
    train.set()
    await _ended(handle)


async def continue_as_new(stack: ScriptedStack) -> None:
    """The first execution of a run that continues as new after two steps, with a checkpoint being written."""
    stack.script.hold(OpKind.COMMIT_CHECKPOINT, 2)
    handle = await stack.start(
        spec(3, runtime={"continue_as_new_every_steps": 2}, evaluation={"num_problems": 0}), "continue-as-new"
    )
    await stack.script.began[OpKind.ROLLOUT_BATCH, 3].wait()
    stack.script.hold(OpKind.COMMIT_CHECKPOINT, 2).set()
    await _ended(handle)


async def retried(stack: ScriptedStack) -> None:
    """A train step that fails once with a fault that may pass."""
    stack.script.faults[OpKind.TRAIN_STEP, 1] = [InfraFault("out of memory")]
    await _ended(await stack.start(spec(1), "retried"))


async def failed(stack: ScriptedStack) -> None:
    """A rollout that fails for good ends the run, with its session closed."""
    stack.script.faults[OpKind.ROLLOUT_BATCH, 2] = [DataFault("prompt 3 cannot be scored")]
    await _ended(await stack.start(spec(3), "failed"))


def bare(steps: int, **sections: dict[str, object]) -> RunSpec:
    """Without evaluations, and with a checkpoint after every step."""
    return spec(steps, evaluation={"num_problems": 0}, checkpointing={"every": 1}, **sections)


async def trainer_lost(stack: ScriptedStack) -> None:
    """The trainer dies in step 2, which the next incarnation trains again from the checkpoint of step 1."""
    stack.script.faults[OpKind.TRAIN_STEP, 2] = [LOST]
    await _ended(await stack.start(bare(2), "trainer-lost"))


async def cluster_lost(stack: ScriptedStack) -> None:
    """The cluster is replaced by another one while step 2 rolls out: nobody there knows any weights."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(bare(2), "cluster-lost")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait()
    rollout.set()
    await stack.cluster.lose_head(SessionRequest(run="cluster-lost", session=1, spec=bare(2)))
    await _ended(handle)


async def damaged_checkpoint(stack: ScriptedStack) -> None:
    """The trainer dies, the newest checkpoint turns out to be damaged, the one before it is used."""
    train = stack.script.hold(OpKind.TRAIN_STEP, 3)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [LOST]
    handle = await stack.start(bare(3), "damaged-checkpoint")
    await stack.script.began[OpKind.TRAIN_STEP, 3].wait()
    state = stack.home.run_folder("damaged-checkpoint") / "checkpoints" / "1-2" / "state"
    state.write_bytes(state.read_bytes()[::-1])
    train.set()
    await _ended(handle)


async def recovered_generator(stack: ScriptedStack) -> None:
    """A generator is lost and replaced below the run, which only writes it down."""
    part = Recovered(role="generator", cause="the actor died", detected_at=1e9, seconds=4.5)
    stack.script.recovered[OpKind.ROLLOUT_BATCH, 1] = part
    await _ended(await stack.start(bare(1), "recovered-generator"))


async def resumed(stack: ScriptedStack) -> None:
    """A run that was terminated in step 2, started anew."""
    stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(bare(2), "resumed")
    await stack.script.began[OpKind.TRAIN_STEP, 2].wait()
    await handle.terminate("a mistake")
    stack.script.holds.clear()
    again = RunState(run="resumed", must_restore=True, incarnation=1, session=2)
    await _ended(await stack.start(bare(2), "resumed", again))


async def forked(stack: ScriptedStack) -> None:
    """A run that starts from a checkpoint of another one."""
    parent = await (await stack.start(bare(1), "parent")).result()
    assert parent.checkpoint is not None
    origin = ForkOrigin(run="parent", checkpoint=parent.checkpoint)
    await _ended(await stack.start(bare(2), "forked", RunState(run="forked", forked_from=origin)))


async def reset(stack: ScriptedStack) -> None:
    """A run that was reset in step 2, to the middle of its history."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(bare(2), "reset")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait()
    history = await handle.fetch_history()
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    tasks = [event.event_id for event in history.events if event.event_type == completed]
    await stack.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=stack.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id="reset", run_id=handle.first_execution_run_id),
            reason="golden",
            workflow_task_finish_event_id=tasks[len(tasks) // 2],
            request_id="reset",
        )
    )
    rollout.set()
    await _ended(stack.client.get_workflow_handle("reset"))


async def extended(stack: ScriptedStack) -> None:
    """Extended by a step while its last checkpoint is written."""
    write = stack.script.hold(OpKind.COMMIT_CHECKPOINT, 1)
    handle = await stack.start(bare(1), "extended")
    await stack.script.began[OpKind.COMMIT_CHECKPOINT, 1].wait()
    await handle.execute_update(
        names.UPDATE_EXTEND, ExtendRequest(max_num_steps=2), id="extend", result_type=RunStatus
    )
    write.set()
    await _ended(handle)


async def hyperparameters(stack: ScriptedStack) -> None:
    """Another learning rate from step 2 on; the trainer dies in step 3, and step 2 keeps what it had."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [LOST]
    never = spec(3, evaluation={"num_problems": 0}, checkpointing={"every": 0})
    handle = await stack.start(never, "hyperparameters")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait()
    request = HyperparametersRequest(values={"policy.optimizer.lr": 1e-4})
    await handle.execute_update(names.UPDATE_HYPERPARAMETERS, request, id="set", result_type=RunStatus)
    rollout.set()
    await _ended(handle)


async def checkpoint_now(stack: ScriptedStack) -> None:
    """A checkpoint that is asked for during step 1, and made after it."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    never = spec(2, evaluation={"num_problems": 0}, checkpointing={"every": 0})
    handle = await stack.start(never, "checkpoint-now")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 1].wait()
    await handle.execute_update(names.UPDATE_CHECKPOINT, id="checkpoint", result_type=RunStatus)
    rollout.set()
    await _ended(handle)


async def stalled(stack: ScriptedStack) -> None:
    """A rollout that stands still until the run is called stalled, and then goes on."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    stack.script.progress[OpKind.ROLLOUT_BATCH, 1] = "1 of 2 groups"
    handle = await stack.start(bare(1, runtime={"stalled_after_s": 10}), "stalled")
    await _in_phase(stack, "stalled", RunPhase.STALLED)
    rollout.set()
    await _ended(handle)


async def stop_in_recovery(stack: ScriptedStack) -> None:
    """Stopped while the checkpoint of step 1 is restored: it ends there."""
    stack.script.hold(OpKind.RESTORE, 1)
    stack.script.faults[OpKind.TRAIN_STEP, 2] = [LOST]
    handle = await stack.start(bare(3), "stop-in-recovery")
    await stack.script.began[OpKind.RESTORE, 1].wait()
    await handle.execute_update(names.UPDATE_STOP, id="stop", result_type=RunStatus)
    await _ended(handle)


async def disk_full(stack: ScriptedStack) -> None:
    """The checkpoint of step 1 does not fit on the disk; the run goes on, and the next one does."""
    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 1] = [StorageFault("no space left on device")]
    await _ended(await stack.start(bare(2), "disk-full"))


async def queued(stack: ScriptedStack) -> None:
    """Another run has the only session: queued, paused while it waits, resumed, queued anew, admitted."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    holder = await stack.start(bare(1), "holder")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 1].wait()
    handle = await stack.start(bare(1), "queued")
    await _in_phase(stack, "queued", RunPhase.QUEUED)
    await handle.execute_update(names.UPDATE_PAUSE, id="pause", result_type=RunStatus)
    await _in_phase(stack, "queued", RunPhase.PAUSED)
    await handle.execute_update(names.UPDATE_RESUME, id="resume", result_type=RunStatus)
    await _in_phase(stack, "queued", RunPhase.QUEUED)
    rollout.set()
    await _ended(holder)
    await _ended(handle)


def ahead(steps: int, **sections: dict[str, object]) -> RunSpec:
    return bare(steps, asynchronous={"max_staleness": 1}, **sections)


async def asynchronous(stack: ScriptedStack) -> None:
    """Each batch is rolled out while the one before it is trained."""
    await _ended(await stack.start(ahead(3), "asynchronous"))


async def asynchronous_trainer_lost(stack: ScriptedStack) -> None:
    """The trainer dies in step 2 while batch 3 is rolled out, which the next incarnation asks for again."""
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    stack.script.faults[OpKind.TRAIN_STEP, 2] = [LOST]
    handle = await stack.start(ahead(3), "asynchronous-trainer-lost")
    await stack.script.began[OpKind.TRAIN_STEP, 2].wait()
    await stack.script.began[OpKind.ROLLOUT_BATCH, 3].wait()
    train.set()
    rollout.set()
    await _ended(handle)


async def asynchronous_stop(stack: ScriptedStack) -> None:
    """Stopped while step 2 trains and batch 3 is rolled out: the one is finished, the other given up."""
    stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(ahead(4), "asynchronous-stop")
    await stack.script.began[OpKind.TRAIN_STEP, 2].wait()
    await stack.script.began[OpKind.ROLLOUT_BATCH, 3].wait()
    await handle.execute_update(names.UPDATE_STOP, id="stop", result_type=RunStatus)
    train.set()
    await _ended(handle)


async def asynchronous_continue_as_new(stack: ScriptedStack) -> None:
    """The batch that is ahead is joined by the next execution."""
    spec = ahead(3, runtime={"continue_as_new_every_steps": 2})
    await _ended(await stack.start(spec, "asynchronous-continue-as-new"))


def stream(steps: int, **sections: dict[str, object]) -> RunSpec:
    return bare(
        steps,
        asynchronous={"sampler": "ready_first", "refit": "keep", "max_staleness": 2},
        **sections,
    )


async def streaming(stack: ScriptedStack) -> None:
    """The first batch takes longer than the next two."""
    first = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    handle = await stack.start(stream(4), "streaming")
    await stack.script.began[OpKind.ROLLOUT_BATCH, 4].wait()
    first.set()
    await _ended(handle)


async def streaming_trainer_lost(stack: ScriptedStack) -> None:
    """The trainer dies in step 3, with the first batch still being sampled."""
    first = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [LOST]
    spec = stream(4)
    handle = await stack.start(spec, "streaming-trainer-lost")
    await stack.script.began[OpKind.TRAIN_STEP, 3].wait()
    first.set()
    await _ended(handle)


async def streaming_stop(stack: ScriptedStack) -> None:
    """Stopped while step 2 waits for groups: it is given up, and so are the rollouts."""
    for batch in (2, 3, 4):
        stack.script.hold(OpKind.ROLLOUT_BATCH, batch)
    handle = await stack.start(stream(4), "streaming-stop")
    await stack.script.began[OpKind.TRAIN_STEP, 2].wait()
    await handle.execute_update(names.UPDATE_STOP, id="stop", result_type=RunStatus)
    await _ended(handle)


async def streaming_continue_as_new(stack: ScriptedStack) -> None:
    """What is open is joined by the next execution."""
    spec = stream(3, runtime={"continue_as_new_every_steps": 2})
    await _ended(await stack.start(spec, "streaming-continue-as-new"))


PATHS: dict[str, Callable[[ScriptedStack], Awaitable[None]]] = {
    "happy": happy,
    "pause-resume": pause_resume,
    "stop-in-rollout": stop_in_rollout,
    "stop-in-training": stop_in_training,
    "continue-as-new": continue_as_new,
    "retried": retried,
    "failed": failed,
    "trainer-lost": trainer_lost,
    "cluster-lost": cluster_lost,
    "damaged-checkpoint": damaged_checkpoint,
    "recovered-generator": recovered_generator,
    "resumed": resumed,
    "forked": forked,
    "reset": reset,
    "extended": extended,
    "hyperparameters": hyperparameters,
    "checkpoint-now": checkpoint_now,
    "stalled": stalled,
    "stop-in-recovery": stop_in_recovery,
    "disk-full": disk_full,
    "queued": queued,
    "asynchronous": asynchronous,
    "asynchronous-trainer-lost": asynchronous_trainer_lost,
    "asynchronous-stop": asynchronous_stop,
    "asynchronous-continue-as-new": asynchronous_continue_as_new,
    "streaming": streaming,
    "streaming-trainer-lost": streaming_trainer_lost,
    "streaming-stop": streaming_stop,
    "streaming-continue-as-new": streaming_continue_as_new,
}
"""Beside them, `before-admission` is a history of an older Ratchet, whose runs may be in flight: it stays."""

SESSIONS = {"queued": 1}
"""At a time; any number, where nothing is said."""


async def _save(stack: ScriptedStack, name: str) -> None:
    from workflows.run import RunWorkflow

    last = await stack.client.get_workflow_handle(name).describe()
    first = last.raw_description.workflow_execution_info.first_run_id
    # A run that was reset is also an execution that follows another; what came before is of no interest.
    run_ids = [last.run_id] if name == "reset" or first == last.run_id else [first, last.run_id]
    executions = [stack.client.get_workflow_handle(name, run_id=run_id) for run_id in run_ids]
    for number, handle in enumerate(executions):
        saved = name if number == 0 else f"{name}-{number + 1}"
        golden = Golden.named(HISTORIES, saved)
        await save_history(handle, golden.history)
        history = load_history(golden.history)  # as saved, without what is private
        write_snapshot(golden.commands, await record_commands([RunWorkflow], history))
        sys.stdout.write(f"{saved}: {len(history.events)} events\n")


async def main(chosen: list[str]) -> None:
    async with dev_server() as environment:
        for name in chosen or PATHS:
            shutil.rmtree(HOME, ignore_errors=True)
            HOME.mkdir()
            limit = Limit(max_sessions=SESSIONS.get(name))
            async with scripted_stack(environment.client, HOME, limit=limit) as stack:
                await PATHS[name](stack)
                await _save(stack, name)
        shutil.rmtree(HOME)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the faults of the script are meant
    asyncio.run(main(sys.argv[1:]))
