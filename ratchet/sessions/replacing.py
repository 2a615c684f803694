"""Replacing what a session can lose without its run having to go back: generator and data plane."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from ratchet.sessions.engines import DataPlaneHandle, GeneratorHandle, TrainerHandle
from ratchet.sessions.losses import GroupsMissing, WeightsMissing
from ratchet.spec.faults import ActorLost, FaultKind, RatchetError
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import AnyArgs, EvaluateArgs, RefitArgs, RestoreArgs, RolloutArgs, TrainArgs
from ratchet.spec.ranges import keys_of
from ratchet.spec.receipts import AnyReceipt, Recovered

logger = logging.getLogger(__name__)

MAX_LOSSES = 3
"""Losses one operation gets over; the next one is its answer, and the run opens a new incarnation."""

HEAD_TRIES, HEAD_EVERY = 50, 0.1
"""How often, and every how many seconds, a trainer between two versions is asked for one."""

TRAINER, GENERATOR, DATA_PLANE = "trainer", "generator", "data-plane"


class Parts:
    """The parts of a session, and how each is made good again."""

    def __init__(
        self, trainer: TrainerHandle, generator: GeneratorHandle, data_plane: DataPlaneHandle
    ) -> None:
        self._trainer = trainer
        self._generator = generator
        self._data_plane = data_plane
        self._wire_dtypes: dict[str, str] | None = None
        """What the open generator takes; None while it is not known to be open."""
        self._lock = asyncio.Lock()
        self._replaced: Counter[str] = Counter()

    async def open(self, model_folder: str, incarnation: int) -> None:
        """Let the generator build its model, once, and end what older incarnations asked of it."""
        self._wire_dtypes = await self._generator.open(model_folder, incarnation)

    async def refit(self, args: RefitArgs) -> AnyReceipt:
        """Move a version from the trainer to the generator."""
        if self._wire_dtypes is None:
            await self.open(await self._trainer.prepare_model(), args.op.incarnation)
        assert self._wire_dtypes is not None
        return await self._generator.refit(args, await self._trainer.stage_refit(args, self._wire_dtypes))

    async def surviving(
        self, args: AnyArgs, progress: Callable[[str], None], action: Callable[[], Awaitable[AnyReceipt]]
    ) -> AnyReceipt:
        """What `action` returns, begun again after each loss that can be made good."""
        recovered: list[Recovered] = []
        losses: list[RatchetError] = []
        seen = self._replaced.copy()
        while True:
            try:
                if losses:
                    recovered += await self._replace(losses[-1], args, progress, seen)
                    seen = self._replaced.copy()
                receipt = await action()
                return receipt.model_copy(update={"recovered": tuple(recovered)}) if recovered else receipt
            except RatchetError as loss:
                if _part_lost(loss, args) is None or len(losses) == MAX_LOSSES:
                    raise
                logger.warning("%s: %s", args.op, loss)
                losses.append(loss)

    async def _replace(
        self, loss: RatchetError, args: AnyArgs, progress: Callable[[str], None], seen: Counter[str]
    ) -> list[Recovered]:
        """Make the lost part good, unless another operation that lost it too was here first."""
        part, noticed = _part_lost(loss, args), time.time()
        assert part is not None
        async with self._lock:
            if self._replaced[part] != seen[part]:
                return []
            progress(f"the {part} is being replaced: {loss}")
            await self._make_good(part, loss, args)
            self._replaced[part] += 1
        took = time.time() - noticed
        return [Recovered(role=part, cause=str(loss)[:500], detected_at=noticed, seconds=took)]

    async def _make_good(self, part: str, loss: RatchetError, args: AnyArgs) -> None:
        match part:
            case _ if part == TRAINER:
                await self._trainer.renew()
            case _ if part == GENERATOR:
                if not isinstance(loss, WeightsMissing):
                    self._wire_dtypes = None
                    await self._generator.renew()
                if isinstance(args, RolloutArgs) and args.live:
                    await self._readmit_head(args.op.run)
                elif isinstance(args, RolloutArgs | EvaluateArgs):
                    await self._readmit(args.op.run, args.version)
            case _:
                if not isinstance(loss, GroupsMissing):
                    await self._data_plane.renew()
                if isinstance(args, TrainArgs):
                    over = set(keys_of(args.finished))
                    keys = range(args.cursor_start, args.cursor_end)
                    await self._generator.refill([key for key in keys if key not in over])

    async def _readmit_head(self, run: str) -> None:
        """The version that the trainer holds, which may move on meanwhile."""
        for _ in range(HEAD_TRIES):
            if version := await self._trainer.position():
                try:
                    return await self._readmit(run, version)
                except ActorLost as loss:
                    if loss.role != TRAINER or await self._trainer.position() == version:
                        raise
            await asyncio.sleep(HEAD_EVERY)
        raise ActorLost("the trainer holds no weights: restore", role=TRAINER)

    async def _readmit(self, run: str, version: WeightVersion) -> None:
        """A generator serves again only after a refit (law 8): the one that had brought this version."""
        op = OpId(run=run, incarnation=version.incarnation, step=version.step, kind=OpKind.REFIT)
        await self.refit(RefitArgs(op=op, version=version))


def _part_lost(loss: RatchetError, args: AnyArgs) -> str | None:
    """The part to be made good; None if that is not for an operation to do."""
    if loss.role == DATA_PLANE and loss.kind is FaultKind.UNAVAILABLE:
        return DATA_PLANE
    if isinstance(loss, ActorLost) and loss.role == GENERATOR:
        return GENERATOR
    if isinstance(loss, ActorLost) and loss.role == TRAINER and isinstance(args, RestoreArgs):
        return TRAINER
    return None
