"""The loop whose steps take groups in as they are finished: a pump of rollouts, and one of steps.

Which groups a step is made of depends on how long each took, so an interrupted run does not end in the bits
of an undisturbed one. What holds all the same: every position of the cursor is trained on once at most, and
whatever is not trained is accounted for; no group is older than the window; nothing finished is sampled
again.
"""

import asyncio
from collections.abc import Iterable

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ratchet.spec.asynchronous import AsynchronousSpec
from ratchet.spec.control import StepEntry
from ratchet.spec.faults import Cancelled, FaultKind, RatchetError
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import RefitArgs, RolloutArgs, TrainArgs
from ratchet.spec.ranges import finished, keys_of, to_ranges
from ratchet.spec.receipts import RefitReceipt, RolloutReceipt, TrainReceipt
from workflows.failures import fault_of
from workflows.life import Life
from workflows.synchronous import due


async def streaming(life: Life, spec: AsynchronousSpec) -> None:
    """Train to the last step, or until somebody asks to stop."""
    rollouts = Rollouts(life, spec)
    try:
        while life.state.step < life.spec.grpo.max_num_steps:
            await life.boundary()
            if life.state.stop_requested or not await _step(life, spec, rollouts):
                break
        await rollouts.give_up()
    finally:
        rollouts.let_go()


class Rollouts:
    """Batches of prompts that are being rolled out: as many as the buffer has room for."""

    def __init__(self, life: Life, spec: AsynchronousSpec) -> None:
        self._life = life
        self._keeps_all = spec.keeps_all
        self._room = spec.buffered(life.spec.grpo.num_prompts_per_step)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By the step in the name of its operation: which one in turn it is."""
        self.fault: ActivityError | RatchetError | None = None
        """What one of them failed with."""

    def open(self) -> None:
        """Those that there is room for; what the last execution had opened is joined. Nothing is begun in a
        pause, and while the generators lack the newest weights: it would be older than planned."""
        life, state = self._life, self._life.state
        for args in state.ahead:
            if args.op.step not in self._tasks:
                self._start(args)
        while self._may_begin() and (count := self._wanted()) > 0:
            over = set(keys_of(state.finished))
            positions: list[int] = []
            end = state.drawn
            while len(positions) < count:
                if end not in over:
                    positions.append(end)
                end += 1
            state.batches += 1
            args = RolloutArgs(
                op=life.op(state.batches, OpKind.ROLLOUT_BATCH),
                cursor_start=state.drawn,
                cursor_end=end,
                version=life.head(),
                live=True,
                finished=to_ranges(key for key in over if state.drawn <= key < end),
            )
            state.drawn = end
            state.ahead.append(args)
            self._start(args)

    def _may_begin(self) -> bool:
        state = self._life.state
        return state.refitted == state.head and not state.paused and not state.stop_requested

    def _wanted(self) -> int:
        """Prompts to draw now: a batch, or what the run lacks to its end. Where groups may be thrown away,
        nobody knows what it will lack: the last ones are drawn for nothing then."""
        state, grpo = self._life.state, self._life.spec.grpo
        over = set(keys_of(state.finished))
        buffered = sum(key not in over for key in range(state.cursor, state.drawn))
        count = grpo.num_prompts_per_step
        if self._keeps_all:
            count = min(count, (grpo.max_num_steps - state.step) * count - buffered)
        return count if buffered + count <= self._room else 0

    def _start(self, args: RolloutArgs) -> None:
        self._tasks[args.op.step] = asyncio.create_task(self._run(args))

    async def _run(self, args: RolloutArgs) -> None:
        try:
            receipt = await self._life.run(args, RolloutReceipt)
        except (ActivityError, RatchetError) as error:
            self.fault = self.fault or error
            return
        state = self._life.state
        state.ahead = [other for other in state.ahead if other.op != args.op]
        self.over(receipt.dropped)
        self.open()

    def over(self, positions: Iterable[int]) -> None:
        """The run is done with these, trained or not."""
        state = self._life.state
        state.cursor, state.finished = finished(state.cursor, state.finished, positions)

    async def give_up(self) -> None:
        """End them: the run is to stop. What was finished by then stays journaled. Raises what one of them
        had failed with."""
        for args in list(self._life.state.ahead):
            await self._life.calls.cancel(args.op)
        await asyncio.gather(*self._tasks.values())
        self._life.state.ahead = []
        if self.fault is not None and fault_of(self.fault).kind is not FaultKind.CANCELLED:
            raise self.fault

    def let_go(self) -> None:
        """The operations go on; nobody here waits for them any more."""
        for task in self._tasks.values():
            task.cancel()


async def _step(life: Life, spec: AsynchronousSpec, rollouts: Rollouts) -> bool:
    """One step. False: it was given up, because the run is to stop."""
    state, step = life.state, life.state.step + 1
    started_at = workflow.time()
    rollouts.open()
    state.begun = max(state.begun, step)
    prompts = life.spec.grpo.num_prompts_per_step
    train = await _trained(
        life,
        rollouts,
        TrainArgs(
            op=life.op(step, OpKind.TRAIN_STEP),
            cursor_start=state.cursor,
            cursor_end=state.cursor + spec.buffered(prompts) + len(list(keys_of(state.finished))),
            version=life.head(),
            hyperparameters=life.hyperparameters(step),
            wanted=prompts,
            finished=state.finished,
            max_staleness=spec.max_staleness,
        ),
    )
    if train is None:
        return False
    assert train.batch is not None, "a step that takes groups in says which"
    rollouts.over(keys_of((*train.trained, *train.evicted, *train.given_up)))
    life.trained(train, step, state.cursor)

    refit = await life.run(RefitArgs(op=life.op(step, OpKind.REFIT), version=train.version), RefitReceipt)
    state.refitted = train.version
    rollouts.open()

    await life.records.step(
        StepEntry(
            step=step,
            started_at=started_at,
            finished_at=workflow.time(),
            rollout=train.batch,
            train=train,
            refit=refit,
        ),
    )
    if due(life.spec.checkpointing.every, step, life):
        await life.checkpoints.save()
    if due(life.spec.evaluation.every, step, life):
        await life.evaluate()
    return True


async def _trained(life: Life, rollouts: Rollouts, args: TrainArgs) -> TrainReceipt | None:
    """None: the step still waited for groups when a stop came. Raises what a rollout failed with."""
    train = asyncio.create_task(life.run(args, TrainReceipt))
    await workflow.wait_condition(
        lambda: train.done() or rollouts.fault is not None or life.state.stop_requested
    )
    if not train.done() and rollouts.fault is not None:
        train.cancel()
        raise rollouts.fault
    if not train.done():
        await life.calls.cancel(args.op)
    try:
        return await train
    except (ActivityError, Cancelled) as error:
        if fault_of(error).kind is FaultKind.CANCELLED and life.state.stop_requested:
            return None
        raise
