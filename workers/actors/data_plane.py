"""The data plane's actor, which owns a session's ledger and what stores its groups, and how others reach
it."""

import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from ratchet.data_plane.backends import CAPABILITIES
from ratchet.data_plane.batch import BatchMeta, Group
from ratchet.data_plane.blocking import BlockingDataPlane, CallersLoop
from ratchet.data_plane.calls import Call, Desk, OwnersMemory
from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.data_plane.ledger import Ledger
from ratchet.data_plane.memory import MemoryStorage
from ratchet.data_plane.owner import OWN_METHODS, Owner
from ratchet.data_plane.plane import StoragePlane
from ratchet.data_plane.storage import Storage
from ratchet.rollouts.partition import PARTITION, TASK
from ratchet.spec import deadlines
from workers.actors.async_lines import AsyncLine
from workers.actors.base import SessionConfig, existing, note_part
from workers.actors.calls import ask_blocking
from workers.actors.data_plane_metrics import offer
from workers.actors.engine import CONTROL, RemoteEngine
from workers.actors.lines import Endpoint, LineServer
from workers.actors.loops import Loop

logger = logging.getLogger(__name__)

ROLE = "data-plane"
DESK = "desk"
LEDGER_METHODS = (
    "register_partition",
    "admit",
    "commit",
    "expect",
    "enter",
    "abandon",
    "lease",
    "ack",
    "release",
    "describe",
    "list_groups",
    "depth",
    "stats",
    "evict",
    "lose",
)
GIB = 2**30
EAGER_AT_MOST = 16 * 2**20
UNBOUNDED_ROOM = 16 * GIB
"""Of a storage that has to know its room, where data_plane.capacity_gib is 0."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Backend:
    """What a process needs to open a storage of its own."""

    name: str
    connection: Any
    """Of TransferQueue; None: the owner's memory."""
    eager: int
    """See ratchet.data_plane.plane.EAGER."""


@ray.remote
class DataPlaneActor:
    """Owns a session's data plane: when it dies, all of it does."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._server: LineServer | None = None
        self._parts: Any = None

    def start(self) -> Endpoint:
        """Serve. Again: the same endpoint."""
        if self._server is None:
            home = self._config.enter(ROLE)
            settings = self._config.spec.data_plane
            ledger = Ledger(deadlines.DATA_PLANE_WRITE)
            ledger.register_partition(PARTITION, [TASK], round(settings.capacity_gib * GIB))
            loop = Loop("owner")
            backend, storage = self._storage(loop)
            owner = Owner(ledger, storage)
            if self._parts:
                self._parts.watch(lambda: loop.run(owner.call("ping")), _end)
            loop.begin(owner.keep_erasing())

            def own(method: str, *arguments: Any) -> Any:
                return loop.run(owner.call(method, *arguments))

            offer(home, self._config.run, self._config.session, ledger.stats)
            desk: dict[str, Callable[..., Any]] = {name: getattr(ledger, name) for name in LEDGER_METHODS}
            desk |= {name: functools.partial(own, name) for name in OWN_METHODS}
            desk["backend"] = lambda: backend
            control = {"ping": lambda: ledger.stats() and None}
            # The ledger answers at once, whoever asks: nobody has to wait for another thread.
            self._server = LineServer(
                ray.util.get_node_ip_address(), {DESK: desk, CONTROL: control}, at_once={DESK, CONTROL}
            )
        return self._server.endpoint

    def _storage(self, loop: Loop) -> tuple[Backend, Storage]:
        settings = self._config.spec.data_plane
        room = round(settings.capacity_gib * GIB) or UNBOUNDED_ROOM
        eager = min(EAGER_AT_MOST, room // 64)
        if settings.backend == "memory":
            return Backend(settings.backend, None, eager), MemoryStorage()
        from workers.actors.transfer_queue import TransferQueueParts

        self._parts = TransferQueueParts(settings.backend, settings.storage_units, room)
        own, others = self._parts.start()
        for role, pid in self._parts.pids().items():
            note_part(self._config, role, pid)
        storage = loop.run(open_storage_of(own, self._config.name(ROLE)))
        return Backend(settings.backend, others, eager), storage


class RayDataPlane(RemoteEngine):
    """DataPlaneHandle over the actor, for the conductor."""

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(config, ROLE, DataPlaneActor, {DESK: 1, CONTROL: 1}, lost=DataPlaneUnavailable)

    async def clear(self) -> None:
        await self.call(DESK, "clear", PARTITION, deadline=deadlines.RAY_CALL)


class SessionDataPlane:
    """A Plane over the actor, for use inside other actors; finds the one that replaced a lost one."""

    def __init__(self, config: SessionConfig, role: str) -> None:
        self._config = config
        self._name = config.name(role)
        self._loop = CallersLoop()
        self._open: BlockingDataPlane | None = None
        self._close: Callable[[], None] = lambda: None
        self.life = 0
        """Rises whenever it is another one, which may lack what the former had."""

    def put(self, partition: str, groups: Sequence[Group]) -> BatchMeta:
        return self._again(lambda plane: plane.put(partition, groups))

    def fetch(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[Group]:
        return self._again(lambda plane: plane.fetch(partition, task, consumer, keys))

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        self._again(lambda plane: plane.ack(partition, task, consumer, keys))

    def describe(self, partition: str) -> BatchMeta:
        return self._again(lambda plane: plane.describe(partition))

    def evict(self, partition: str, keys: Sequence[int], cause: str) -> int:
        return self._again(lambda plane: plane.evict(partition, keys, cause))

    def _again(self, work: Callable[[BlockingDataPlane], Result]) -> Result:
        # Every call means the same when it is made twice, so one that met a plane that has been replaced is
        # made again, of its successor.
        known = self._open is not None
        try:
            return work(self._opened())
        except DataPlaneUnavailable:
            self._forget()
            if not known:
                raise
        return self._again(work)

    def _forget(self) -> None:
        close, self._open, self._close = self._close, None, lambda: None
        close()

    def _opened(self) -> BlockingDataPlane:
        if self._open is None:
            try:
                actor = existing(self._config, ROLE)
            except ValueError:
                raise DataPlaneUnavailable("the data plane is gone", role=ROLE) from None
            endpoint: Endpoint = ask_blocking(
                actor.start.remote(), ROLE, deadlines.RAY_CALL, lost=DataPlaneUnavailable
            )
            plane, self._close = self._loop.run(self._reach(endpoint))
            self._open = BlockingDataPlane(plane, self._loop)
            self.life += 1
        return self._open

    async def _reach(self, endpoint: Endpoint) -> tuple[StoragePlane, Callable[[], None]]:
        reached = await reach(endpoint, self._name)
        desk, backend = Desk(reached.call, reached.post), reached.backend
        plane = StoragePlane(desk, reached.storage, CAPABILITIES[backend.name], self._name, backend.eager)
        return plane, reached.close


@dataclass(frozen=True, slots=True)
class Reached:
    """An actor's owner, and a storage of this process: what a StoragePlane is made of."""

    call: Call
    post: Call
    backend: Backend
    storage: Storage
    close: Callable[[], None]


async def reach(endpoint: Endpoint, name: str) -> Reached:
    """Raises DataPlaneUnavailable."""
    line = AsyncLine(endpoint, ROLE, DESK, lost=DataPlaneUnavailable)

    def call(method: str, *arguments: Any) -> Coroutine[Any, Any, Any]:
        return line.call(method, *arguments, deadline=deadlines.RAY_CALL)

    def post(method: str, *arguments: Any) -> Coroutine[Any, Any, None]:
        return line.post(method, *arguments, deadline=deadlines.RAY_CALL)

    backend: Backend = await call("backend")
    storage = (
        OwnersMemory(call) if backend.connection is None else await open_storage_of(backend.connection, name)
    )

    def close() -> None:
        storage.close()
        line.close()

    return Reached(call, post, backend, storage, close)


async def open_storage_of(connection: Any, name: str) -> Storage:
    from ratchet.data_plane.transfer_queue import open_storage

    if connection.backend == "ray":
        from workers.actors.ray_rows import open_ray_storage

        return open_ray_storage(connection, name)
    return open_storage(connection, name)


def _end(cause: str) -> None:
    """A data plane that lost a part is lost. Whoever speaks to this process hears of its end at once."""
    logger.error("the data plane ends: %s", cause)
    logging.shutdown()
    os._exit(1)
