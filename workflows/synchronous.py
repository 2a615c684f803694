"""The synchronous loop: roll out, train, refit; then the next step."""

from temporalio import workflow

from ratchet.spec.control import StepEntry
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import RefitArgs, RolloutArgs, TrainArgs
from ratchet.spec.receipts import RefitReceipt, TrainReceipt
from workflows.life import Life


async def synchronous(life: Life) -> None:
    """Train to the last step, or until somebody asks to stop."""
    state = life.state
    while state.step < life.spec.grpo.max_num_steps:
        await life.boundary()
        if state.stop_requested or not await _step(life):
            return


async def _step(life: Life) -> bool:
    """One step. False: it was given up, because the run is to stop."""
    state, step = life.state, life.state.step + 1
    first, last = state.cursor, state.cursor + life.spec.grpo.num_prompts_per_step
    started_at = workflow.time()
    version = life.head()

    rollout = await life.rollout_unless_stopped(
        RolloutArgs(
            op=life.op(step, OpKind.ROLLOUT_BATCH), cursor_start=first, cursor_end=last, version=version
        )
    )
    if rollout is None:
        return False

    state.begun = max(state.begun, step)
    train = await life.run(
        TrainArgs(
            op=life.op(step, OpKind.TRAIN_STEP),
            cursor_start=first,
            cursor_end=last,
            version=version,
            dropped=rollout.dropped,
            hyperparameters=life.hyperparameters(step),
        ),
        TrainReceipt,
    )
    life.trained(train, step, train.cursor_end)

    refit = await life.run(RefitArgs(op=life.op(step, OpKind.REFIT), version=train.version), RefitReceipt)
    state.refitted = train.version

    await life.records.step(
        StepEntry(
            step=step,
            started_at=started_at,
            finished_at=workflow.time(),
            rollout=rollout,
            train=train,
            refit=refit,
        ),
    )
    if due(life.spec.checkpointing.every, step, life):
        await life.checkpoints.save()
    if due(life.spec.evaluation.every, step, life):
        await life.evaluate()
    return True


def due(every: int, step: int, life: Life) -> bool:
    """Every so many steps; the last step has its checkpoint and evaluation when the run finishes."""
    return every > 0 and step % every == 0 and step < life.spec.grpo.max_num_steps
