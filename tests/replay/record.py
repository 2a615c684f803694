"""Record the golden histories anew: `python tests/replay/record.py [NAME...]`, then look at the diff.

One history for each path of a run that has a name. Needed after a change that is meant to alter them.
"""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from temporalio.client import WorkflowHandle

from ratchet.spec import names
from ratchet.spec.faults import DataFault, InfraFault
from ratchet.spec.ids import OpKind
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase, RunStatus
from workers.testing.replay import Golden, load_history, record_commands, save_history, write_snapshot
from workers.testing.scripted import ScriptedStack, scripted_stack
from workers.testing.servers import dev_server

HISTORIES = Path(__file__).parent.parent / "histories"
DEADLINE = 60.0

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


PATHS: dict[str, Callable[[ScriptedStack], Awaitable[None]]] = {
    "happy": happy,
    "pause-resume": pause_resume,
    "stop-in-rollout": stop_in_rollout,
    "stop-in-training": stop_in_training,
    "continue-as-new": continue_as_new,
    "retried": retried,
    "failed": failed,
}


async def _save(stack: ScriptedStack, name: str) -> None:
    from workflows.run import RunWorkflow

    last = await stack.client.get_workflow_handle(name).describe()
    first = last.raw_description.workflow_execution_info.first_run_id
    run_ids = [first] if first == last.run_id else [first, last.run_id]
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
            with tempfile.TemporaryDirectory() as folder:
                async with scripted_stack(environment.client, Path(folder)) as stack:
                    await PATHS[name](stack)
                    await _save(stack, name)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the faults of the script are meant
    asyncio.run(main(sys.argv[1:]))
