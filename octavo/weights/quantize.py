"""Float32 weights to block-quantized ones, in NumPy: for tools and tests that write model files.

Pure functions on arrays; no files. Clarity and quality come before speed: csrc/quantize.cc has the
same bits sooner for the types that models are quantized to while they load. The block layouts are
those `dequant` reads; the choice of scales is least squares.
"""

from collections.abc import Callable

import numpy as np

from octavo.weights.quant_types import QUANT_TYPES

CHUNK_ELEMENTS = 1 << 20  # per pass, bounds the temporaries
# Codes past the top of a line's range that its slope is tried with: a steeper line clips the
# largest values of a block and rounds the others finer. On normal values these and one refit leave
# 0.0708 of the values (root mean square) in Q4_1, 0 to 3 leave 0.0723, 0 alone 0.0736.
EXTRA_CODES = (-0.6, 0, 0.6, 1.2, 2, 3)
LINE_CHUNK = 2048  # blocks of a pass of the line search: its arrays stay in L2
REFINEMENTS = 4  # rounds of "round, then refit the scale"; the error stops moving after about four

# What stands in for a K type where a row is not whole blocks of 256.
FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def quantize(values: np.ndarray, quant: str) -> np.ndarray:
    """uint8 [rows, bytes_per_row] of float32 [rows, columns] in element type `quant`.

    `columns` must be a multiple of the type's block size (`storable_type` picks one that fits).
    """
    kind = QUANT_TYPES[quant]
    rows, columns = values.shape
    assert values.dtype == np.float32 and columns % kind.block_size == 0, (values.shape, quant)
    result = np.empty((rows, kind.row_bytes(columns)), np.uint8)
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    for start in range(0, rows, step):
        chunk = np.ascontiguousarray(values[start : start + step]).reshape(-1, kind.block_size)
        packed = _QUANTIZERS[quant](chunk)
        result[start : start + step] = packed.reshape(-1, result.shape[1])
    return result


def storable_type(quant: str, columns: int) -> str:
    """`quant`, or the wider type that replaces it for rows that are not whole blocks of it."""
    if columns % QUANT_TYPES[quant].block_size == 0:
        return quant
    fallback = FALLBACKS.get(quant, "F16")
    return fallback if columns % QUANT_TYPES[fallback].block_size == 0 else "F16"


def to_bf16(values: np.ndarray) -> np.ndarray:
    """uint16 bfloat16 bits of float32 values, rounded to nearest even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 64, rounded).astype(np.uint16)


def _bytes(values: np.ndarray) -> np.ndarray:
    """The array's bytes, a row of uint8 for each of its rows."""
    return np.ascontiguousarray(values).view(np.uint8)


def _half_bytes(values: np.ndarray) -> np.ndarray:
    return _bytes(values.astype(np.float16).reshape(-1, 1))


def _divide(values: np.ndarray | np.float32, scale: np.ndarray) -> np.ndarray:
    """values / scale, 0 where the scale is 0."""
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    return values * inverse


def _fit_scale(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Scale d per row for codes in [low, high] that makes sum((v - d * q)^2) small.

    Starts from the scale that puts the largest magnitude on `low` (the longer side), then
    alternates rounding and the least-squares scale, keeping the best. float32 [rows, 1].
    """
    peak = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    scale = (peak / low).astype(np.float32)
    best, best_error = scale, np.full_like(scale, np.inf)
    for _ in range(REFINEMENTS):
        codes = np.clip(np.rint(_divide(values, scale)), low, high)
        error = np.square(values - scale * codes).sum(1, keepdims=True)
        better = error < best_error
        best, best_error = np.where(better, scale, best), np.where(better, error, best_error)
        norm = np.square(codes).sum(1, keepdims=True)
        scale = _divide((values * codes).sum(1, keepdims=True), norm)
    return best


def _fit_affine(values: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale d and offset m per row for codes in [0, high] with v near d * q + m and m <= 0.

    Alternates rounding and the least-squares line, keeping the best. Two float32 [rows, 1].
    """
    offset = np.minimum(values.min(1, keepdims=True), 0)
    scale = (values.max(1, keepdims=True) - offset) / high
    best = (scale, offset)
    best_error = np.full_like(scale, np.inf)
    for _ in range(REFINEMENTS):
        codes = np.clip(np.rint(_divide(values - offset, scale)), 0, high)
        error = np.square(values - (scale * codes + offset)).sum(1, keepdims=True)
        better = error < best_error
        best = (np.where(better, scale, best[0]), np.where(better, offset, best[1]))
        best_error = np.where(better, error, best_error)
        mean_q, mean_v = codes.mean(1, keepdims=True), values.mean(1, keepdims=True)
        spread = np.square(codes - mean_q).sum(1, keepdims=True)
        shared = ((codes - mean_q) * (values - mean_v)).sum(1, keepdims=True)
        scale = np.maximum(_divide(shared, spread), 0)
        offset = np.minimum(mean_v - scale * mean_q, 0)
    return best


def _fit_line(values: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Slope d and offset m per row for codes in [0, high], by a search over slopes.

    For each slope the values are rounded to codes and the least-squares line through (code, value)
    is taken; the best line is refitted once more the same way. Errors come from the sums alone, so
    a candidate costs no second pass. Two float32 [rows, 1].
    """
    with np.errstate(over="ignore", invalid="ignore"):  # subnormal widths: such lines are not taken
        parts = [_fit_lines(np.ascontiguousarray(values[start : start + LINE_CHUNK].T), high)
                 for start in range(0, len(values), LINE_CHUNK)]
    slope, offset = (np.concatenate(part)[:, None] for part in zip(*parts, strict=True))
    return slope, offset


def _fit_lines(columns: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray]:
    """As `_fit_line`, for blocks as columns: sums over axis 0 are sums of vectors."""
    if columns.shape[1] == 1:  # NumPy would add up a lone column in another order
        slope, offset = _fit_lines(np.repeat(columns, 2, axis=1), high)
        return slope[:1], offset[:1]
    size = np.float32(len(columns))
    low = columns.min(0)
    width = columns.max(0) - low
    sum_v = columns.sum(0)
    best_error = np.full_like(low, np.inf)
    slope, offset = np.zeros_like(low), sum_v / size
    codes, products = np.empty_like(columns), np.empty_like(columns)
    for extra in (*EXTRA_CODES, None):
        if extra is None:  # the best line once more
            inverse = _divide(np.float32(1), slope)
            start = -offset * inverse
        else:
            inverse = _divide(np.float32(high + extra), width)
            start = -low * inverse
        np.multiply(columns, inverse, out=codes)
        np.rint(np.add(codes, start, out=codes), out=codes)
        np.minimum(np.maximum(codes, 0, out=codes), high, out=codes)
        sum_q = codes.sum(0)
        sum_qq = np.einsum("ij,ij->j", codes, codes)
        sum_qv = np.multiply(codes, columns, out=products).sum(0)  # rounded products: no FMA
        line = _divide(size * sum_qv - sum_q * sum_v, size * sum_qq - sum_q * sum_q)
        shift = (sum_v - line * sum_q) / size
        error = -line * sum_qv - shift * sum_v  # but for the sum of squares, which all share
        better = error < best_error
        best_error = np.where(better, error, best_error)
        slope, offset = np.where(better, line, slope), np.where(better, shift, offset)
    zero = np.float32(0)  # added, so that no zero is negative: its sign would be an accident
    return slope + zero, offset + zero


def _pair_nibbles(codes: np.ndarray) -> np.ndarray:
    """First half of the last axis into low nibbles, second half into high ones."""
    half = codes.shape[-1] // 2
    return codes[..., :half] | (codes[..., half:] << 4)


def _f32(values: np.ndarray) -> np.ndarray:
    return _bytes(values)


def _f16(values: np.ndarray) -> np.ndarray:
    return _bytes(values.astype(np.float16))


def _bf16(values: np.ndarray) -> np.ndarray:
    return _bytes(to_bf16(values))


def _symmetric_codes(values: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """f16 scale bytes and integer codes in [low, high], rounded against the scale as stored."""
    stored = _half_bytes(_fit_scale(values, low, high))
    scale = stored.view(np.float16).astype(np.float32)
    codes = np.clip(np.rint(_divide(values, scale)), low, high)
    return stored, codes.astype(np.int8)


def _affine_codes(values: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f16 scale and offset bytes and codes in [0, high], rounded against both as stored."""
    scale, offset = _fit_line(values, high)
    stored, stored_offset = _half_bytes(scale), _half_bytes(offset)
    scale = stored.view(np.float16).astype(np.float32)
    offset = stored_offset.view(np.float16).astype(np.float32)
    codes = np.clip(np.rint(_divide(values - offset, scale)), 0, high)
    return stored, stored_offset, codes.astype(np.uint8)


def _fifth_bits(codes: np.ndarray) -> np.ndarray:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _q4_0(values: np.ndarray) -> np.ndarray:
    scale, codes = _symmetric_codes(values, -8, 7)
    return np.concatenate([scale, _pair_nibbles((codes + 8).astype(np.uint8))], axis=1)


def _q4_1(values: np.ndarray) -> np.ndarray:
    scale, offset, codes = _affine_codes(values, 15)
    return np.concatenate([scale, offset, _pair_nibbles(codes)], axis=1)


def _q5_0(values: np.ndarray) -> np.ndarray:
    scale, signed = _symmetric_codes(values, -16, 15)
    codes = (signed + 16).astype(np.uint8)
    return np.concatenate([scale, _fifth_bits(codes), _pair_nibbles(codes & 15)], axis=1)


def _q5_1(values: np.ndarray) -> np.ndarray:
    scale, offset, codes = _affine_codes(values, 31)
    return np.concatenate([scale, offset, _fifth_bits(codes), _pair_nibbles(codes & 15)], axis=1)


def _q8_0(values: np.ndarray) -> np.ndarray:
    scale = _half_bytes(np.abs(values).max(1) / 127)
    divisor = scale.view(np.float16).astype(np.float32)
    codes = np.clip(np.rint(_divide(values, divisor)), -127, 127).astype(np.int8)
    return np.concatenate([scale, codes.view(np.uint8)], axis=1)


def _k_affine(values: np.ndarray, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Head bytes [blocks, 16] and codes [blocks, 8, 32] of a Q4_K or Q5_K block.

    Each sub-block of 32 gets a line; slopes and (negated) offsets are then stored as 6-bit
    multiples of one f16 each per block, and the codes are rounded against what was stored.
    """
    sub = values.reshape(-1, 32)
    scale, offset = (part.reshape(-1, 8) for part in _fit_affine(sub, high))
    stored = _half_bytes(scale.max(1) / 63)
    stored_min = _half_bytes(-offset.min(1) / 63)
    unit, unit_min = (s.view(np.float16).astype(np.float32) for s in (stored, stored_min))
    scales = np.clip(np.rint(_divide(scale, unit)), 0, 63).astype(np.uint8)
    minima = np.clip(np.rint(_divide(-offset, unit_min)), 0, 63).astype(np.uint8)
    slope = (unit * scales).reshape(-1, 1)
    shifted = sub + (unit_min * minima).reshape(-1, 1)
    codes = np.clip(np.rint(_divide(shifted, slope)), 0, high).astype(np.uint8)
    low = (scales[:, :4] | ((scales[:, 4:] >> 4) << 6)).astype(np.uint8)
    mid = (minima[:, :4] | ((minima[:, 4:] >> 4) << 6)).astype(np.uint8)
    split = ((scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)).astype(np.uint8)
    head = np.concatenate([stored, stored_min, low, mid, split], axis=1)
    return head, codes.reshape(-1, 8, 32)


def _k_nibbles(codes: np.ndarray) -> np.ndarray:
    """Sub-blocks 2p and 2p+1 share 32 bytes: [blocks, 8, 32] -> [blocks, 128]."""
    return _pair_nibbles(codes.reshape(-1, 4, 64)).reshape(-1, 128)


def _q4_k(values: np.ndarray) -> np.ndarray:
    head, codes = _k_affine(values, 15)
    return np.concatenate([head, _k_nibbles(codes)], axis=1)


def _q5_k(values: np.ndarray) -> np.ndarray:
    head, codes = _k_affine(values, 31)
    shift = np.arange(8, dtype=np.uint8)[None, :, None]
    high = np.bitwise_or.reduce((codes >> 4) << shift, axis=1)
    return np.concatenate([head, high, _k_nibbles(codes & 15)], axis=1)


def _q6_k(values: np.ndarray) -> np.ndarray:
    sub = values.reshape(-1, 16)
    scale = _fit_scale(sub, -32, 31).reshape(-1, 16)
    stored = _half_bytes(np.abs(scale).max(1) / 127)
    unit = stored.view(np.float16).astype(np.float32)
    scales = np.clip(np.rint(_divide(scale, unit)), -128, 127).astype(np.int8)
    slope = (unit * scales.astype(np.float32)).reshape(-1, 1)
    codes = np.clip(np.rint(_divide(sub, slope)), -32, 31).astype(np.int8)
    unsigned = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = _pair_nibbles((unsigned & 15).reshape(-1, 2, 128)).reshape(-1, 128)
    shift = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = np.bitwise_or.reduce((unsigned >> 4) << shift, axis=2).reshape(-1, 64)
    return np.concatenate([low, high, scales.view(np.uint8), stored], axis=1)


_QUANTIZERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0,
    "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip
assert _QUANTIZERS.keys() <= QUANT_TYPES.keys()
WRITABLE_TYPES = tuple(_QUANTIZERS)  # the other types are read only
