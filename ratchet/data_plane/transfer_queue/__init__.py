"""Storages of the data plane over TransferQueue. Runs in actors: it brings torch."""

from ratchet.data_plane.transfer_queue.connection import Connection, open_storage

__all__ = ["Connection", "open_storage"]
