"""The data plane's actor, and the DataPlane that speaks to it."""

from collections.abc import Sequence
from typing import Any

import ray

from ratchet.data_plane.memory import MemoryDataPlane
from ratchet.data_plane.protocol import Capabilities, GroupTag
from ratchet.rollouts.group import PromptGroup
from ratchet.spec import deadlines
from workers.actors.base import SessionConfig
from workers.actors.calls import ask_blocking

ROLE = "data-plane"


@ray.remote
class DataPlaneActor:
    """Holds finished groups in memory."""

    def __init__(self, config: SessionConfig) -> None:
        config.enter()
        self._plane = MemoryDataPlane()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._plane, method)(*args)


class ActorDataPlane:
    """A DataPlane over the actor, for use inside other actors."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._ack: Any = None
        """The last acknowledgement, sent and not looked at yet."""

    def _call(self, method: str, *args: Any) -> Any:
        self._settle()
        return ask_blocking(self._actor.call.remote(method, *args), ROLE, deadlines.RAY_CALL)

    def _settle(self) -> None:
        sent, self._ack = self._ack, None
        if sent is not None:
            ask_blocking(sent, ROLE, deadlines.RAY_CALL)

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
        """Sent at once, looked at by the next call: the actor keeps one caller's calls in order, and nobody
        has to wait for the end of what is over. If it failed, the next call raises its error."""
        self._settle()
        self._ack = self._actor.call.remote("ack", partition, task, consumer, keys)

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
