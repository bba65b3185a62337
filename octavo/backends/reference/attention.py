"""Softmax attention of one sequence's rows over its paged K and V, in bounded memory.

Keys are read in splits of 256 absolute positions, ascending, and folded into a running softmax; a
split that a row cannot see leaves its running values as they are, bit for bit. So a row's result
depends neither on the other rows of the step nor on slots. Knows no graph and no step.
Source of the running softmax: Milakov and Gimelshein (arXiv:1805.02867).
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from octavo.backends.reference.kv_cache import KVCache
from octavo.backends.reference.matmul import large_tile_agrees, tiles
from octavo.graph.step_arrays import F32

SPLIT = 256  # positions of a key split
# Query rows of a matrix product (times the query heads of a KV head). Eight keep decode cheap;
# 64 rows amortize NumPy's cost per call while a tile's scores stay within a cache.
SMALL_ROWS = 8
LARGE_ROWS = 64


@dataclasses.dataclass(slots=True, frozen=True)
class AttentionOptions:
    """See ops.Attention. sinks: [num_heads] or None."""

    num_heads: int
    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    sinks: F32 | None


def attend(
    q: F32,
    cache: KVCache,
    *,
    first_position: int,
    context_len: int,
    block_table: npt.NDArray[np.int32],
    block_size: int,
    options: AttentionOptions,
) -> F32:
    """q [rows, num_heads, k_dim] at first_position .. -> [rows, num_heads, v_dim].

    context_len: positions stored so far, those of these rows included.
    """
    state = _Running(q, first_position, options, num_kv_heads=cache.k.arrays[0].shape[1],
                     v_dim=cache.v.arrays[0].shape[2])  # fmt: skip
    first = 0 if options.window is None else max(0, first_position - options.window + 1)
    for start in range(first // SPLIT * SPLIT, context_len, SPLIT):
        stop = min(start + SPLIT, context_len)
        # Absent positions are zeros, never what a recycled block happens to hold.
        at = np.arange(max(start, first), stop)
        slots = block_table[at // block_size].astype(np.int64) * block_size + at % block_size
        state.fold(
            start,
            stop,
            k=_split(cache.k.read(slots), at - start),
            v=_split(cache.v.read(slots), at - start),
        )
    return state.result()


def _split(values: F32, columns: npt.NDArray[np.integer]) -> F32:
    """[n, heads, dim] at n of the split's positions -> [heads, SPLIT, dim], zero elsewhere."""
    out = np.zeros((values.shape[1], SPLIT, values.shape[2]), np.float32)
    out[:, columns] = values.swapaxes(0, 1)
    return out


class _Running:
    """The running softmax of all rows: maximum, sum and weighted V so far.

    Rows are padded to whole tiles; a padding row repeats the last position and is dropped.
    """

    def __init__(self, q: F32, first_position: int, options: AttentionOptions, *,
                 num_kv_heads: int, v_dim: int) -> None:  # fmt: skip
        self._rows, num_heads, k_dim = q.shape
        group = num_heads // num_kv_heads
        large = _large_rows(group, k_dim, v_dim)
        self._tiles = tiles(self._rows, large=large, small=SMALL_ROWS)
        padded = sum(self._tiles)
        self._options = options
        self._positions = first_position + np.minimum(np.arange(padded), self._rows - 1)
        self._q = np.zeros((num_kv_heads, padded, group, k_dim), np.float32)
        self._q[:, : self._rows] = q.reshape(-1, num_kv_heads, group, k_dim).swapaxes(0, 1)
        self._max = np.full((num_kv_heads, padded, group), -np.inf, np.float32)
        self._sum = np.zeros((num_kv_heads, padded, group), np.float32)
        self._acc = np.zeros((num_kv_heads, padded, group, v_dim), np.float32)

    def fold(self, start: int, stop: int, *, k: F32, v: F32) -> None:
        """Adds positions start .. stop - 1 (of the split that begins at start)."""
        window = self._options.window
        first = 0
        for size in self._tiles:
            rows = slice(first, first + size)
            low, high = self._positions[first], self._positions[first + size - 1]
            first += size
            ahead = self._options.causal and high < start
            behind = window is not None and low - window + 1 >= stop
            if not ahead and not behind:
                self._fold_tile(rows, start, stop, k=k, v=v)

    def _fold_tile(self, rows: slice, start: int, stop: int, *, k: F32, v: F32) -> None:
        q = self._q[:, rows]
        heads, size, group, k_dim = q.shape
        flat = np.ascontiguousarray(q).reshape(heads, size * group, k_dim)
        scores = np.matmul(flat, k.swapaxes(1, 2)).reshape(heads, size, group, SPLIT)
        scores *= np.float32(self._options.scale)
        if self._options.softcap is not None:
            cap = np.float32(self._options.softcap)
            scores = cap * np.tanh(scores / cap)
        scores[:, ~self._visible(self._positions[rows], start, stop)] = -np.inf
        old_max = self._max[:, rows]
        new_max = np.maximum(old_max, scores.max(-1))
        # A row that has seen nothing yet has maximum -inf; 0 in its place keeps exp defined.
        base = np.where(np.isneginf(new_max), np.float32(0), new_max)
        weights = np.exp(scores - base[..., None])
        decay = np.exp(old_max - base)
        mixed = np.matmul(weights.reshape(heads, size * group, SPLIT), v)
        self._sum[:, rows] = self._sum[:, rows] * decay + weights.sum(-1)
        self._acc[:, rows] *= decay[..., None]
        self._acc[:, rows] += mixed.reshape(heads, size, group, -1)
        self._max[:, rows] = new_max

    def _visible(
        self, positions: npt.NDArray[np.integer], start: int, stop: int
    ) -> npt.NDArray[np.bool_]:
        """[rows, group, SPLIT]: which columns of the split each row may read."""
        columns = start + np.arange(SPLIT)
        seen = np.broadcast_to(columns < stop, (positions.size, SPLIT))
        if self._options.causal:
            seen = seen & (columns <= positions[:, None])
        if self._options.window is not None:
            seen = seen & (columns > positions[:, None] - self._options.window)
        group = self._max.shape[2]
        return np.broadcast_to(seen[:, None], (positions.size, group, SPLIT))

    def result(self) -> F32:
        """[rows, num_heads, v_dim]."""
        total, acc = self._sum, self._acc
        if self._options.sinks is not None:
            heads, _, group = self._max.shape
            sinks = self._options.sinks.reshape(heads, 1, group)
            top = np.maximum(self._max, sinks)
            decay = np.exp(self._max - top)
            total = total * decay + np.exp(sinks - top)
            acc = acc * decay[..., None]
        out: F32 = np.divide(acc, total[..., None])[:, : self._rows].swapaxes(0, 1)
        return np.ascontiguousarray(out).reshape(self._rows, -1, acc.shape[3])


def _large_rows(group: int, k_dim: int, v_dim: int) -> int | None:
    """LARGE_ROWS where products of that many rows have the bits of those of SMALL_ROWS."""
    small, large = SMALL_ROWS * group, LARGE_ROWS * group
    agrees = large_tile_agrees(SPLIT, k_dim, small=small, large=large) and large_tile_agrees(
        v_dim, SPLIT, small=small, large=large
    )
    return LARGE_ROWS if agrees else None
