"""What a process needs to reach a session's TransferQueue."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.data_plane.partition import ROLE
from ratchet.data_plane.transfer_queue.library import transfer_queue
from ratchet.data_plane.transfer_queue.rows import RowNames, Rows
from ratchet.data_plane.transfer_queue.storage import TransferQueueStorage

MANAGERS = {"simple": "SimpleStorage", "mooncake_cpu": "MooncakeStore"}
"""Backends that the library's storage managers reach, by their names there."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Small, and can be pickled."""

    backend: str
    controller: Any
    """Where the library's controller answers (ZMQServerInfo)."""
    config: Mapping[str, Any]
    """Of the storage manager."""


def open_client(connection: Connection, name: str) -> Any:
    """A client of the library; of the running event loop."""
    library = transfer_queue()
    client = library.client.AsyncTransferQueueClient(name, connection.controller)
    if manager := MANAGERS.get(connection.backend):
        try:
            client.initialize_storage_manager(manager, dict(connection.config))
        except RuntimeError as error:
            client.close()
            raise DataPlaneUnavailable(
                f"{connection.backend} cannot be reached: {error}", role=ROLE
            ) from error
    return client


def open_storage(connection: Connection, name: str) -> TransferQueueStorage:
    """A storage of this process, to be used in the running event loop. Raises DataPlaneUnavailable.

    `name`: of the client, for the library's logs.
    """
    client = open_client(connection, name)
    return TransferQueueStorage(RowNames(client), _rows(connection, client))


def _rows(connection: Connection, client: Any) -> Rows:
    if connection.backend == "simple":
        from ratchet.data_plane.transfer_queue.simple import UnitRows

        return UnitRows(client)
    from ratchet.data_plane.transfer_queue.mooncake import MooncakeRows

    return MooncakeRows(client)
