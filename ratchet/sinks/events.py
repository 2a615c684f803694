"""The records of TensorBoard's event files: few enough to be written without TensorBoard.

A file is a sequence of framed protocol buffers (`Event` of tensorflow/core/util/event.proto): the length, its
checksum, the message, its checksum; checksums are masked CRC-32C.
"""

import struct
from collections.abc import Mapping

_START_OF_SESSION = 1

_DOUBLE, _INT, _FLOAT, _BYTES = 1, 0, 5, 2
"""Wire types."""


def version(at: float) -> bytes:
    """The first record of a file."""
    return _record(_double(1, at) + _bytes(3, b"brain.Event:2"))


def scalars(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """Numbers of a step, each under its tag."""
    summary = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _key(2, _FLOAT) + struct.pack("<f", value))
        for tag, value in values.items()
    )
    return _record(_double(1, at) + _int(2, step) + _bytes(5, summary))


def start_at(at: float, step: int) -> bytes:
    """What was written of `step` and later ones does not count any more."""
    return _record(_double(1, at) + _int(2, step) + _bytes(7, _int(1, _START_OF_SESSION)))


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _int(field: int, value: int) -> bytes:
    return _key(field, _INT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_crc_of_byte, range(256)))


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
