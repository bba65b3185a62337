"""Frames on the socket between front end and engine core: u32 little-endian length, then msgpack.

Bytes only: no socket is opened here, and no message has meaning.
"""

import struct

import msgspec

from octavo.core.messages import CoreOutputs, EngineCoreOutputs, FromCore, ToCore
from octavo.errors import EngineDeadError

HEADER = struct.Struct("<I")
# far above any step's news (a 16 Mi-token prompt is 80 MiB); a longer frame is garbage
MAX_FRAME_BYTES = 1 << 28
# news beyond this are cut into several frames. One request's news of a step are smaller: its
# logprobs are bounded (input_processor.py), and so is what fits here beside them
SPLIT_BYTES = 1 << 26

_encoder = msgspec.msgpack.Encoder()
to_core_decoder = msgspec.msgpack.Decoder(ToCore)
from_core_decoder = msgspec.msgpack.Decoder(FromCore)


def encode_frame(message: object) -> bytes:
    """A whole frame, header included."""
    return _framed(_encoder.encode(message))


def _framed(payload: bytes) -> bytes:
    assert len(payload) <= MAX_FRAME_BYTES, f"a frame of {len(payload)} bytes"
    return HEADER.pack(len(payload)) + payload


def encode_outputs(outputs: EngineCoreOutputs, *, split_bytes: int = SPLIT_BYTES) -> list[bytes]:
    """The frames of one step's news: one, unless they are huge. The last one has the stats."""
    payload = _encoder.encode(CoreOutputs(outputs))
    news = outputs.outputs
    if len(payload) <= split_bytes or len(news) < 2:
        return [_framed(payload)]
    half = len(news) // 2
    first = EngineCoreOutputs(outputs=news[:half])
    rest = EngineCoreOutputs(outputs=news[half:], stats=outputs.stats)
    return (encode_outputs(first, split_bytes=split_bytes)
            + encode_outputs(rest, split_bytes=split_bytes))


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
