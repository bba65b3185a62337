"""Frames on the socket between front end and engine core: u32 little-endian length, then msgpack.

Bytes only: no socket is opened here, and no message has meaning.
"""

import struct

import msgspec

from octavo.core.messages import FromCore, ToCore
from octavo.errors import EngineDeadError

HEADER = struct.Struct("<I")
# far above any step's news (a 16 Mi-token prompt is 80 MiB); a longer frame is garbage
MAX_FRAME_BYTES = 1 << 28

_encoder = msgspec.msgpack.Encoder()
to_core_decoder = msgspec.msgpack.Decoder(ToCore)
from_core_decoder = msgspec.msgpack.Decoder(FromCore)


def encode_frame(message: object) -> bytes:
    """A whole frame, header included."""
    payload = _encoder.encode(message)
    assert len(payload) <= MAX_FRAME_BYTES, f"a frame of {len(payload)} bytes"
    return HEADER.pack(len(payload)) + payload


def payload_size(header: bytes) -> int:
    """Length of the payload behind a header. Raises EngineDeadError for garbage."""
    (size,) = HEADER.unpack(header)
    if size > MAX_FRAME_BYTES:
        raise EngineDeadError(f"a frame of {size} bytes came from the engine: it is out of step")
    return size


class FrameReader:
    """Cuts a byte stream into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by these bytes, in order."""
        self._buffer += data
        found = []
        while len(self._buffer) >= HEADER.size:
            end = HEADER.size + payload_size(bytes(self._buffer[: HEADER.size]))
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return found
