"""The processes of a session's TransferQueue, made and watched by the actor that owns them."""

import logging
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.data_plane.transfer_queue import Connection
from ratchet.data_plane.transfer_queue.library import transfer_queue
from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError
from ratchet.spec.ids import RAY_NAMESPACE
from workers.actors.mooncake_master import start_master

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.5
CONTROLLER, STORAGE, OBJECTS = "tq-controller", "tq-storage", "tq-objects"
MOONCAKE_BUFFER = 256 * 2**20


class TransferQueueParts:
    """Children of this process: actors that are not detached, processes with a death signal. They end with
    it, whatever ends it.

    The library's own `init` gives its actors names that are the same for every session of a cluster, and ends
    every Mooncake of the host.
    """

    def __init__(self, backend: str, storage_units: int, room: int) -> None:
        """`room`: bytes that a storage which has to know it beforehand can hold."""
        self._backend = backend
        self._units = storage_units
        self._room = room
        self._actors: dict[str, Any] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> tuple[Connection, Connection]:
        """For the owner, and for everybody else. Raises DataPlaneUnavailable if they do not come up."""
        library = transfer_queue()
        from transfer_queue.controller import TransferQueueController

        controller: Any = TransferQueueController
        # Nothing is reserved, as for all actors of a session.
        self._actors[CONTROLLER] = controller.options(num_cpus=0).remote(
            sampler=library.SequentialSampler(), polling_mode=True
        )
        match self._backend:
            case "simple":
                return self._simple()
            case "mooncake_cpu":
                return self._mooncake()
            case "ray":
                return self._ray()
            case _:
                raise SpecError(f"data_plane.backend: TransferQueue has no {self._backend}")

    def _simple(self) -> tuple[Connection, Connection]:
        from transfer_queue.storage.simple_storage import SimpleStorageUnit

        unit: Any = SimpleStorageUnit
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        for rank in range(self._units):
            node = NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=True)
            options = unit.options(num_cpus=0, scheduling_strategy=node)
            self._actors[f"{STORAGE}-{rank}"] = options.remote({"num_data_storage_units": self._units})
        told = self._ask(lambda actor: actor.get_zmq_server_info.remote())
        connection = Connection("simple", told.pop(CONTROLLER), {"zmq_info": told})
        return connection, connection

    def _mooncake(self) -> tuple[Connection, Connection]:
        host = ray.util.get_node_ip_address()
        port = start_master(self._processes, host)
        told = self._ask(lambda actor: actor.get_zmq_server_info.remote())
        config = {
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": f"{host}:{port}",
            "local_hostname": host,
            "protocol": "tcp",
            "local_buffer_size": MOONCAKE_BUFFER,
        }
        # All memory is the owner's: what was put outlives who put it.
        own = Connection("mooncake_cpu", told[CONTROLLER], {**config, "global_segment_size": self._room})
        return own, Connection("mooncake_cpu", told[CONTROLLER], {**config, "global_segment_size": 0})

    def _ray(self) -> tuple[Connection, Connection]:
        from transfer_queue.storage.clients.ray_storage_client import RayObjectRefStorage

        objects: Any = RayObjectRefStorage
        name = f"{OBJECTS}-{uuid.uuid4().hex}"  # that of a session would still be its dead predecessor's
        self._actors[OBJECTS] = objects.options(num_cpus=0, name=name, namespace=RAY_NAMESPACE).remote()
        told = ray.get(
            self._actors[CONTROLLER].get_zmq_server_info.remote(), timeout=deadlines.DATA_PLANE_START
        )
        connection = Connection("ray", told, {"objects": name})
        return connection, connection

    def pids(self) -> dict[str, int]:
        processes = {role: process.pid for role, process in self._processes.items()}
        return processes | self._ask(lambda actor: actor.__ray_call__.remote(_pid))

    def _ask(self, call: Callable[[Any], Any]) -> dict[str, Any]:
        refs = {role: call(actor) for role, actor in self._actors.items()}
        try:
            return dict(
                zip(refs, ray.get(list(refs.values()), timeout=deadlines.DATA_PLANE_START), strict=True)
            )
        except (RayError, GetTimeoutError) as error:
            raise DataPlaneUnavailable(
                f"TransferQueue does not come up: {error}", role="data-plane"
            ) from error

    def end(self) -> None:
        """Before this process does."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        for actor in self._actors.values():
            ray.kill(actor)

    def watch(self, ping: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Call `lost` with the cause, from a thread, once one of them is dead or silent, or `ping` fails."""
        # Two threads: a ping of a part that just died takes its whole deadline.
        for name, look in (("parts", self._watch_parts), ("ping", _keep_pinging(ping))):
            threading.Thread(target=look, args=(lost,), name=f"transfer-queue-{name}", daemon=True).start()

    def _watch_parts(self, lost: Callable[[str], None]) -> None:
        asked: dict[str, tuple[Any, float]] = {}
        while True:
            for role, process in self._processes.items():
                if process.poll() is not None:
                    return lost(f"{role} is gone: it exited with {process.returncode}")
            for role, actor in self._actors.items():
                ref, since = asked.get(role, (None, 0.0))
                if ref is not None and not ray.wait([ref], timeout=0)[0]:
                    if time.monotonic() - since > deadlines.ENGINE_SILENT:
                        return lost(f"{role} is silent")
                    continue
                try:
                    if ref is not None:
                        ray.get(ref)
                except RayError as error:
                    return lost(f"{role} is gone: {str(error).splitlines()[0]}")
                asked[role] = actor.__ray_call__.remote(_pid), time.monotonic()
            time.sleep(LOOK_EVERY)


def _keep_pinging(ping: Callable[[], None]) -> Callable[[Callable[[str], None]], None]:
    def keep(lost: Callable[[str], None]) -> None:
        while True:
            time.sleep(deadlines.ENGINE_PING_EVERY)
            try:
                ping()
            except Exception as error:
                return lost(str(error))

    return keep


def _pid(_actor: Any) -> int:
    return os.getpid()
