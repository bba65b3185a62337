"""Float matrices to blocks on all CPUs: natively where that is built for the types, else NumPy.

Both give the same bits (`quantize` is the reference). It opens no files.
"""

import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from octavo.weights.dequant import dequantize
from octavo.weights.quant_types import QUANT_TYPES
from octavo.weights.quantize import quantize

_native: Any
try:
    _native = importlib.import_module("octavo._native")
except ImportError:  # nothing was compiled, or the CPU lacks what it needs
    _native = None

MAX_THREADS = 16
_ROWS = 512  # of a task; rows are independent, so the split changes no bit
# QuantType of csrc/linear.h
_FROM = {"F32": 0, "BF16": 1, "F16": 17}
_TO = {"Q4_1": 3, "Q8_0": 6}


def quantize_matrix(
    raw: np.ndarray, kind: str, quant: str, columns: int
) -> tuple[np.ndarray, float]:
    """Blocks of `quant` and the largest magnitude of a matrix stored as `kind`.

    raw: uint8 [rows, bytes_per_row of `kind`]. Returns uint8 [rows, bytes_per_row of `quant`]; the
    blocks are of no use where the magnitude is NaN, infinite or beyond what `quant` holds.
    """
    rows = len(raw)
    result = np.empty((rows, QUANT_TYPES[quant].row_bytes(columns)), np.uint8)
    native = _native is not None and kind in _FROM and quant in _TO

    def convert(start: int) -> float:
        source, target = raw[start : start + _ROWS], result[start : start + _ROWS]
        if native:
            source = np.ascontiguousarray(source)
            return float(_native.quantize(_FROM[kind], _TO[quant], source, columns, target))
        values = dequantize(source, kind, columns)
        peak = float(np.abs(values).max(initial=0.0))
        if np.isfinite(peak):
            with np.errstate(over="ignore"):  # a scale beyond f16, which the caller refuses
                target[...] = quantize(values, quant)
        return peak

    with ThreadPoolExecutor(_num_threads()) as pool:
        peaks = list(pool.map(convert, range(0, rows, _ROWS)))
    return result, float(np.max(peaks, initial=0.0))


def _num_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    return min(MAX_THREADS, os.cpu_count() or 1)
