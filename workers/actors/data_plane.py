"""The data plane's actor, and the DataPlane that speaks to it."""

from collections.abc import Sequence
from typing import Any

import ray

from ratchet.data_plane.memory import MemoryDataPlane
from ratchet.data_plane.protocol import Capabilities, DataPlaneUnavailable, GroupTag
from ratchet.rollouts.group import PromptGroup
from ratchet.rollouts.partition import TRAIN_PARTITION, register
from ratchet.spec import deadlines
from workers.actors.base import SessionConfig, existing
from workers.actors.calls import ask_blocking
from workers.actors.engine import CONTROL, RemoteEngine
from workers.actors.lines import Endpoint, Line, LineServer

ROLE = "data-plane"
METHODS = (
    "capabilities",
    "ping",
    "register_partition",
    "put",
    "lease",
    "ack",
    "release",
    "get",
    "tags",
    "list_groups",
    "depth",
    "evict",
    "clear",
)
QUEUE = "queue"


@ray.remote
class DataPlaneActor:
    """Holds finished groups in memory."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._server: LineServer | None = None

    def start(self) -> Endpoint:
        """Serve. Again: the same endpoint."""
        if self._server is None:
            self._config.enter(ROLE)
            plane = MemoryDataPlane()
            register(plane)
            self._server = LineServer(
                ray.util.get_node_ip_address(),
                {QUEUE: {name: getattr(plane, name) for name in METHODS}, CONTROL: {"ping": plane.ping}},
            )
        return self._server.endpoint


class RayDataPlane(RemoteEngine):
    """DataPlaneHandle over the actor, for the conductor."""

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(config, ROLE, DataPlaneActor, (QUEUE, CONTROL), lost=DataPlaneUnavailable)

    async def clear(self) -> None:
        await self.call(QUEUE, "clear", TRAIN_PARTITION, deadline=deadlines.RAY_CALL)


class ActorDataPlane:
    """A DataPlane over the actor, for use inside other actors; finds the one that replaced a lost one."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._line: Line | None = None

    def _call(self, method: str, *arguments: Any) -> Any:
        # Every call means the same when it is made twice, so one that met a line to a plane that has been
        # replaced is made again, on a line to its successor.
        known = self._line is not None
        try:
            return self._connected().call(method, *arguments, deadline=deadlines.RAY_CALL)
        except DataPlaneUnavailable:
            self._line = None
            if not known:
                raise
        return self._call(method, *arguments)

    def _connected(self) -> Line:
        if self._line is None:
            try:
                actor = existing(self._config, ROLE)
            except ValueError:
                raise DataPlaneUnavailable("the data plane is gone", role=ROLE) from None
            endpoint: Endpoint = ask_blocking(
                actor.start.remote(), ROLE, deadlines.RAY_CALL, lost=DataPlaneUnavailable
            )
            self._line = Line(endpoint, ROLE, QUEUE, lost=DataPlaneUnavailable)
        return self._line

    def capabilities(self) -> Capabilities:
        return self._call("capabilities")

    def ping(self) -> None:
        self._call("ping")

    def register_partition(self, partition: str, tasks: Sequence[str]) -> None:
        self._call("register_partition", partition, tasks)

    def put(self, partition: str, groups: Sequence[PromptGroup]) -> None:
        self._call("put", partition, groups)

    def lease(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[PromptGroup]:
        return self._call("lease", partition, task, consumer, keys)

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        """Sent at once, looked at by the next call: one line's calls stay in order, and nobody has to wait
        for the end of what is over. If it failed, the next call raises its error."""
        try:
            self._connected().post("ack", partition, task, consumer, keys, deadline=deadlines.RAY_CALL)
        except DataPlaneUnavailable:
            self._line = None  # what is gone holds nothing that could be handed out twice

    def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        self._call("release", partition, task, consumer, keys)

    def get(self, partition: str, keys: Sequence[int]) -> list[PromptGroup]:
        return self._call("get", partition, keys)

    def tags(self, partition: str, keys: Sequence[int] | None = None) -> list[GroupTag]:
        return self._call("tags", partition, keys)

    def list_groups(self, partition: str) -> list[int]:
        return self._call("list_groups", partition)

    def depth(self, partition: str, task: str) -> int:
        return self._call("depth", partition, task)

    def evict(self, partition: str, keys: Sequence[int]) -> None:
        self._call("evict", partition, keys)

    def clear(self, partition: str) -> None:
        self._call("clear", partition)
