"""Paged K and V of one KV store, in the dtype that a KV cache would keep them in.

Slots are block_id * block_size + offset. Knows no block tables, no sequences.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.graph.ops import KVStoreSpec
from octavo.graph.step_arrays import F32

Slots = npt.NDArray[np.integer]


class KVCache:
    """K [slots, heads, k_dim] and V [slots, heads, v_dim] of one store.

    dtype: f32 | bf16 (rounded to nearest even) | int8 (one scale a token and head for each of K and
    V: absmax / 127; codes rounded to nearest even).
    """

    def __init__(self, spec: KVStoreSpec, *, num_slots: int, dtype: str) -> None:
        kind = _KINDS[dtype]
        self.k = kind(num_slots, spec.num_kv_heads, spec.k_dim)
        self.v = kind(num_slots, spec.num_kv_heads, spec.v_dim)

    def write(self, slots: Slots, k: F32, v: F32) -> None:
        """Stores k [n, heads, k_dim] and v at n slots."""
        self.k.write(slots, k)
        self.v.write(slots, v)

    def copy(self, source: int, destination: int, count: int) -> None:
        """Copies `count` slots, bit for bit."""
        for part in (self.k, self.v):
            for array in part.arrays:
                array[destination : destination + count] = array[source : source + count]


class _F32Slots:
    def __init__(self, num_slots: int, heads: int, dim: int) -> None:
        self._values = np.zeros((num_slots, heads, dim), np.float32)
        self.arrays: tuple[npt.NDArray, ...] = (self._values,)

    def write(self, slots: Slots, x: F32) -> None:
        self._values[slots] = x

    def read(self, slots: Slots) -> F32:
        return self._values[slots]


class _BF16Slots:
    """The upper halves of float32 bit patterns."""

    def __init__(self, num_slots: int, heads: int, dim: int) -> None:
        self._bits = np.zeros((num_slots, heads, dim), np.uint16)
        self.arrays: tuple[npt.NDArray, ...] = (self._bits,)

    def write(self, slots: Slots, x: F32) -> None:
        bits = np.ascontiguousarray(x).view(np.uint32)
        # Adding half of the dropped part, less one for an even result, rounds to nearest even.
        self._bits[slots] = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16

    def read(self, slots: Slots) -> F32:
        return (self._bits[slots].astype(np.uint32) << 16).view(np.float32)


class _Int8Slots:
    def __init__(self, num_slots: int, heads: int, dim: int) -> None:
        self._codes = np.zeros((num_slots, heads, dim), np.int8)
        self._scales = np.zeros((num_slots, heads, 1), np.float32)
        self.arrays: tuple[npt.NDArray, ...] = (self._codes, self._scales)

    def write(self, slots: Slots, x: F32) -> None:
        scales = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        codes = np.divide(x, scales, out=np.zeros_like(x), where=scales > 0)
        self._codes[slots] = np.rint(codes)
        self._scales[slots] = scales

    def read(self, slots: Slots) -> F32:
        return self._codes[slots] * self._scales[slots]


_KINDS: dict[str, Callable[[int, int, int], _F32Slots | _BF16Slots | _Int8Slots]] = {
    "f32": _F32Slots,
    "bf16": _BF16Slots,
    "int8": _Int8Slots,
}
