"""The asynchronous loop: the next batch is rolled out while the trainer works on this one.

The weights change between two batches, never within one (what is open is waited for before a refit), so
which weights answered does not depend on how long anything took: batch n + 1 is sampled by those of step
n - 1. A run ends in the same bits however often it was interrupted, since batch n + 1 is in the journal
before step n can be in a checkpoint.
"""

import asyncio

from temporalio import workflow

from ratchet.spec.control import StepEntry
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import RefitArgs, RolloutArgs, TrainArgs
from ratchet.spec.receipts import RefitReceipt, RolloutReceipt, TrainReceipt
from workflows.life import Life
from workflows.synchronous import due


async def asynchronous(life: Life, max_staleness: int) -> None:
    """Train to the last step, or until somebody asks to stop. `max_staleness`: batches beyond the one that is
    trained."""
    ahead = Ahead(life)
    try:
        while life.state.step < life.spec.grpo.max_num_steps:
            await life.boundary()
            if life.state.stop_requested or not await _step(life, ahead, max_staleness):
                return
    finally:
        ahead.let_go()


class Ahead:
    """Batches that are rolled out, or were, and are not trained yet."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._rollouts: dict[int, asyncio.Task[RolloutReceipt | None]] = {}
        """By step."""

    def open(self, last: int) -> None:
        """Those of all steps up to `last`. What the last execution had opened is joined."""
        state = self._life.state
        for step in range(state.step + 1, min(last, self._life.spec.grpo.max_num_steps) + 1):
            if step in self._rollouts:
                continue
            args = next((args for args in state.ahead if args.op.step == step), None)
            if args is None:
                args = self._args(step)
                state.ahead.append(args)
            rollout = asyncio.create_task(self._life.rollout_unless_stopped(args))
            rollout.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._rollouts[step] = rollout

    def _args(self, step: int) -> RolloutArgs:
        state, prompts = self._life.state, self._life.spec.grpo.num_prompts_per_step
        assert state.refitted is not None, "nothing is rolled out before the generators hold weights"
        first = state.cursor + (step - state.step - 1) * prompts
        return RolloutArgs(
            op=self._life.op(step, OpKind.ROLLOUT_BATCH),
            cursor_start=first,
            cursor_end=first + prompts,
            version=state.refitted,
        )

    async def batch(self, step: int) -> tuple[RolloutArgs, RolloutReceipt] | None:
        """That of `step`, once it is finished; None: it was given up, because the run is to stop."""
        args = next(args for args in self._life.state.ahead if args.op.step == step)
        receipt = await self._rollouts[step]
        return None if receipt is None else (args, receipt)

    def trained(self, step: int) -> None:
        del self._rollouts[step]
        state = self._life.state
        state.ahead = [args for args in state.ahead if args.op.step != step]

    async def drained(self) -> None:
        """Nothing is being sampled. Raises what a rollout failed with."""
        for rollout in self._rollouts.values():
            await rollout

    def let_go(self) -> None:
        """The operations go on; nobody here waits for them any more."""
        for rollout in self._rollouts.values():
            rollout.cancel()


async def _step(life: Life, ahead: Ahead, max_staleness: int) -> bool:
    """One step. False: it was given up, because the run is to stop."""
    state, step = life.state, life.state.step + 1
    started_at = workflow.time()
    version = life.head()

    ahead.open(step)
    batch = await ahead.batch(step)
    if batch is None:
        return False
    args, rollout = batch
    ahead.open(step + max_staleness)

    state.begun = max(state.begun, step)
    train = await life.run(
        TrainArgs(
            op=life.op(step, OpKind.TRAIN_STEP),
            cursor_start=args.cursor_start,
            cursor_end=args.cursor_end,
            version=version,
            dropped=rollout.dropped,
            hyperparameters=life.hyperparameters(step),
            max_staleness=max_staleness,
        ),
        TrainReceipt,
    )
    ahead.trained(step)
    life.trained(train, step, train.cursor_end)

    await ahead.drained()
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
