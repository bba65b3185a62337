"""Writes GGUF version 3 files, for tools that convert models and tests that need small ones.

It knows the container only. Tensor data is produced one tensor at a time, so that a model larger
than memory can be converted.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.weights.gguf import DEFAULT_ALIGNMENT, MAGIC, SCALARS, TYPE_ARRAY, TYPE_STRING
from octavo.weights.quant_types import QUANT_TYPES

_VERSION = 3
_U32, _I32, _F32, _BOOL, _U64, _I64 = 4, 5, 6, 7, 10, 11


@dataclass(slots=True, frozen=True)
class TensorToWrite:
    """`shape` is row-major; `data` makes the tensor's bytes (uint8, any shape) when called."""

    name: str
    shape: tuple[int, ...]
    quant: str
    data: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Size of the data in the file."""
        rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return rows * QUANT_TYPES[self.quant].row_bytes(self.shape[-1])


def write_gguf(
    path: Path, *, metadata: Mapping[str, Any], tensors: Sequence[TensorToWrite]
) -> None:
    """Write one file. A metadata value that is `bytes` is written as it is (u32 type, then value):
    `encode_value` makes one of a chosen type, `GgufMetadata.encoded` copies one."""
    header = bytearray(MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _string(key) + (value if isinstance(value, bytes) else encode_value(value))
    offset = 0
    for tensor in tensors:
        header += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        header += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        header += struct.pack("<IQ", _type_id(tensor.quant), offset)
        offset += _padded(tensor.nbytes)
    header += bytes(_padded(len(header)) - len(header))
    with open(path, "wb") as out:
        out.write(header)
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.data())
            assert data.nbytes == tensor.nbytes, (tensor, data.nbytes)
            out.write(data.tobytes() + bytes(_padded(data.nbytes) - data.nbytes))


def _type_id(quant: str) -> int:
    type_id = QUANT_TYPES[quant].gguf_id
    assert type_id is not None, quant
    return type_id


def encode_value(value: Any, value_type: int | None = None) -> bytes:
    """u32 type and value. The type is guessed from the value where not given: bool, u32 or i32
    (64 bits where needed), f32, string, or an array typed by its first element."""
    chosen = _guess_type(value) if value_type is None else value_type
    if chosen != TYPE_ARRAY:
        return struct.pack("<I", chosen) + _bare(value, chosen)
    return encode_array(value, _guess_type(value[0]) if len(value) else TYPE_STRING)


def encode_array(values: Sequence[Any], item_type: int) -> bytes:
    """u32 type and value of an array whose elements are of one chosen type."""
    items = b"".join(_bare(item, item_type) for item in values)
    return struct.pack("<IIQ", TYPE_ARRAY, item_type, len(values)) + items


def _guess_type(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        small, large = (_U32, _U64) if value >= 0 else (_I32, _I64)
        return small if -(1 << 31) <= value < 1 << 32 else large
    if isinstance(value, float):
        return _F32
    if isinstance(value, str):
        return TYPE_STRING
    assert isinstance(value, list | tuple), value
    return TYPE_ARRAY


def _bare(value: Any, value_type: int) -> bytes:
    return (
        _string(value) if value_type == TYPE_STRING else struct.pack(SCALARS[value_type][0], value)
    )


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(nbytes: int) -> int:
    return -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
