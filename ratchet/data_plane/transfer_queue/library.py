"""TransferQueue, set up before it is imported: it reads its environment once.

Its own waits are minutes, or for ever: Ratchet's deadlines are around every call, and these are the backstop.
"""

import logging
import os
from types import ModuleType

from ratchet.spec.faults import SpecError

_SETTINGS = {
    "TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT": "60",
    "TQ_SIMPLE_STORAGE_MAX_ATTEMPTS": "1",
    "TQ_SIMPLE_STORAGE_PROBE_TIMEOUT": "5",
    "TQ_DATA_UPDATE_RESPONSE_TIMEOUT": "5",
    "TQ_STORAGE_HANDSHAKE_TIMEOUT": "10",
    "TQ_CLIENT_ZMQ_IO_THREADS": "1",
    "TQ_LOGGING_LEVEL": "ERROR",
}


def transfer_queue() -> ModuleType:
    """The library. Raises SpecError if it is not installed."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import transfer_queue as library
    except ImportError as error:
        raise SpecError(
            f"data_plane.backend needs TransferQueue ({error}): pip install 'ratchet[engine]', "
            f"or set it to memory"
        ) from error
    logging.getLogger("transfer_queue").setLevel(logging.ERROR)
    return library
