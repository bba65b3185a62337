"""Block-quantized weights to float32, in NumPy: the meaning of every element type.

Pure functions on arrays; no files. Every product and sum is a separate float32 operation in the
order the formulas below are written, so results are the same bits on every machine.
Source of the block layouts: the ggml project's reference dequantization (named in each function).
"""

from collections.abc import Callable

import numpy as np

from octavo.weights.quant_types import QUANT_TYPES

CHUNK_ELEMENTS = 1 << 20  # per pass: temporaries stay in the caches and far below the result's size

# IQ4_NL's sixteen levels, and E2M1's sixteen values times two.
_IQ4_NL_TABLE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
_E2M1_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

_Blocks = np.ndarray  # uint8 [number of blocks, block_bytes]


def dequantize(
    raw: np.ndarray, quant: str, columns: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Float32 [rows, columns] of `raw`, uint8 [rows, bytes_per_row], of element type `quant`.

    Writes into `out` (float32, C-contiguous, [rows, columns]) when given.
    """
    kind = QUANT_TYPES[quant]
    rows = raw.shape[0]
    assert raw.dtype == np.uint8 and raw.shape == (rows, kind.row_bytes(columns)), raw.shape
    result = np.empty((rows, columns), np.float32) if out is None else out
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    for start in range(0, rows, step):
        chunk = np.ascontiguousarray(raw[start : start + step])
        blocks = chunk.reshape(-1, kind.block_bytes)
        target = result[start : start + step]
        target[...] = _DEQUANTIZERS[quant](blocks).reshape(target.shape)
    return result


def _half(blocks: _Blocks, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _float(blocks: _Blocks, at: int) -> np.ndarray:
    """The float32 at byte `at` of every block, [blocks, 1]."""
    return blocks[:, at : at + 4].copy().view(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low nibbles of all bytes, then the high ones: [..., n] -> [..., 2n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: np.ndarray) -> np.ndarray:
    """Bit i of a little-endian bit string per block: [blocks, n] -> [blocks, 8n]."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _f32(blocks: _Blocks) -> np.ndarray:
    return blocks.view(np.float32)


def _f16(blocks: _Blocks) -> np.ndarray:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: _Blocks) -> np.ndarray:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: _Blocks) -> np.ndarray:
    """f16 d, 32 nibbles: d * (q - 8)."""
    codes = _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    return _half(blocks, 0) * codes.astype(np.float32)


def _q4_1(blocks: _Blocks) -> np.ndarray:
    """f16 d, f16 m, 32 nibbles: d * q + m."""
    codes = _nibbles(blocks[:, 4:]).astype(np.float32)
    return _half(blocks, 0) * codes + _half(blocks, 2)


def _q5_0(blocks: _Blocks) -> np.ndarray:
    """f16 d, 32 high bits, 32 nibbles: d * (q - 16)."""
    codes = _nibbles(blocks[:, 6:]) | (_bits(blocks[:, 2:6]) << 4)
    return _half(blocks, 0) * (codes.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: _Blocks) -> np.ndarray:
    """f16 d, f16 m, 32 high bits, 32 nibbles: d * q + m."""
    codes = _nibbles(blocks[:, 8:]) | (_bits(blocks[:, 4:8]) << 4)
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: _Blocks) -> np.ndarray:
    """f16 d, 32 signed bytes: d * q."""
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _mxfp4(blocks: _Blocks) -> np.ndarray:
    """Exponent e, 32 nibbles of E2M1: 2^(e - 128) * twice the nibble's value."""
    exponent = blocks[:, :1].astype(np.uint32)
    # Below 2^-126 a float32 is subnormal: the one bit moves within the mantissa.
    bits = np.where(exponent < 2, np.uint32(1 << 21) << exponent, (exponent - 1) << 23)
    return bits.view(np.float32) * _E2M1_TWICE[_nibbles(blocks[:, 1:])].astype(np.float32)


def _iq4_nl(blocks: _Blocks) -> np.ndarray:
    """f16 d, 32 nibbles that index a table: d * table[q]."""
    return _half(blocks, 0) * _iq4_nl_codes(blocks).astype(np.float32)


def _iq4_nl_codes(blocks: _Blocks) -> np.ndarray:
    return _IQ4_NL_TABLE[_nibbles(blocks[:, 2:])]


def iq4_nl_as_q8_0(raw: np.ndarray) -> np.ndarray:
    """The same values in Q8_0: uint8 [rows, bytes of IQ4_NL] -> uint8 [rows, bytes of Q8_0]."""
    blocks = np.ascontiguousarray(raw).reshape(-1, QUANT_TYPES["IQ4_NL"].block_bytes)
    codes = _iq4_nl_codes(blocks).view(np.uint8)
    return np.concatenate([blocks[:, :2], codes], axis=1).reshape(raw.shape[0], -1)


def unpack_k_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eight 6-bit scales and minima of a Q4_K or Q5_K block.

    uint8 [blocks, 12] -> two uint8 [blocks, 8]. The first four of each lie in the low six bits of
    bytes 0-3 and 4-7; the last four are split: nibbles in bytes 8-11, top bits in bytes 0-7.
    """
    low, mid, split = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (split & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([mid & 63, (split >> 4) | ((mid >> 6) << 4)], axis=1)
    return scales, minima


def _k_affine(blocks: _Blocks, codes: np.ndarray) -> np.ndarray:
    """(d * scale) * q - dmin * min for eight sub-blocks of 32; `codes` is [blocks, 8, 32]."""
    scales, minima = unpack_k_scales(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    return scale[:, :, None] * codes.astype(np.float32) - minimum[:, :, None]


def _q2_k(blocks: _Blocks) -> np.ndarray:
    """16 bytes of scale and minimum nibbles, 64 bytes of bit pairs, f16 d, f16 dmin.

    (d * scale) * q - dmin * min, both per 16 elements; bit pairs as in Q6_K.
    """
    packed = blocks[:, :16]
    scale = _half(blocks, 80) * (packed & 15).astype(np.float32)
    minimum = _half(blocks, 82) * (packed >> 4).astype(np.float32)
    codes = _bit_pairs(blocks[:, 16:80]).astype(np.float32)
    return scale[:, :, None] * codes - minimum[:, :, None]


def _q3_k(blocks: _Blocks) -> np.ndarray:
    """32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of sixteen 6-bit scales, f16 d.

    (d * (scale - 32)) * (q - 4), a scale per 16 elements. Third bit s of byte i belongs to run s of
    32 elements; the scales' low nibbles lie in eight bytes, the top bit pairs in four.
    """
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    by_two = np.array([0, 2, 4, 6], np.uint8)[None, :, None]
    top = ((high[:, None, :] >> by_two) & 3).reshape(-1, 16)
    scales = (_nibbles(low) | (top << 4)).astype(np.int8) - np.int8(32)
    shift = np.arange(8, dtype=np.uint8)[None, :, None]
    third = ((blocks[:, None, :32] >> shift) & 1).reshape(-1, 16, 16)
    codes = (_bit_pairs(blocks[:, 32:96]) | (third << 2)).astype(np.int8) - np.int8(4)
    scale = _half(blocks, 108) * scales.astype(np.float32)
    return scale[:, :, None] * codes.astype(np.float32)


def _bit_pairs(packed: np.ndarray) -> np.ndarray:
    """uint8 [blocks, 64] -> [blocks, 16, 16]: bit pair p of 32 bytes is a run of 32 elements."""
    shift = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    return ((packed.reshape(-1, 2, 1, 32) >> shift) & 3).reshape(-1, 16, 16)


def _q4_k(blocks: _Blocks) -> np.ndarray:
    """f16 d, f16 dmin, 12 bytes of scales, four runs of 32 bytes: low nibbles, then high ones."""
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _k_affine(blocks, codes)


def _q5_k(blocks: _Blocks) -> np.ndarray:
    """As Q4_K, with 32 bytes of fifth bits: bit s of byte i belongs to sub-block s, element i."""
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shift = np.arange(8, dtype=np.uint8)[None, :, None]
    high = (blocks[:, None, 16:48] >> shift) & 1
    return _k_affine(blocks, low | (high << 4))


def _q6_k(blocks: _Blocks) -> np.ndarray:
    """128 low nibbles bytes, 64 bytes of high bit pairs, 16 signed scales, f16 d.

    (d * scale) * (q - 32), a scale per 16 elements. Each half of 128 elements takes 64 nibble
    bytes (two runs of 32, low nibbles of both, then high ones) and 32 bytes of bit pairs.
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shift = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shift) & 3
    codes = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scale[:, :, None] * codes.reshape(-1, 16, 16).astype(np.float32)


def _int4(blocks: _Blocks) -> np.ndarray:
    """f32 d, 32 nibbles: d * (q - 8)."""
    codes = _nibbles(blocks[:, 4:]).astype(np.int8) - np.int8(8)
    return _float(blocks, 0) * codes.astype(np.float32)


def _int4_min(blocks: _Blocks) -> np.ndarray:
    """f32 d, f32 m, 32 nibbles: d * q + m."""
    return _float(blocks, 0) * _nibbles(blocks[:, 8:]).astype(np.float32) + _float(blocks, 4)


def _int8(blocks: _Blocks) -> np.ndarray:
    """f32 d, 32 signed bytes: d * q."""
    return _float(blocks, 0) * blocks[:, 4:].view(np.int8).astype(np.float32)


def _int8_min(blocks: _Blocks) -> np.ndarray:
    """f32 d, f32 m, 32 unsigned bytes: d * q + m."""
    return _float(blocks, 0) * blocks[:, 8:].astype(np.float32) + _float(blocks, 4)


_DEQUANTIZERS: dict[str, Callable[[_Blocks], np.ndarray]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0,
    "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "IQ4_NL": _iq4_nl, "MXFP4": _mxfp4,
    "INT4": _int4, "INT4_MIN": _int4_min, "INT8": _int8, "INT8_MIN": _int8_min,
}  # fmt: skip
assert _DEQUANTIZERS.keys() == QUANT_TYPES.keys()
