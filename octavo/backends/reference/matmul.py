"""Matrix products in which a row's bits do not depend on how many rows come with it.

BLAS picks its kernel, and with it the order of its sums, by the shape of a call: one row times W
and the first of 512 rows times W differ in their last bits. So every call here has one of two
fixed numbers of rows, padded with zeros: SMALL always, LARGE for weights where a trial shows the
same bits as SMALL. It knows no graph.

What holds: BLAS kernels compute each output element from its row and its column alone, in an order
given by the shape of the call. That is no promise of BLAS; tests/backends checks it here.
"""

import functools

import numpy as np

from octavo.graph.step_arrays import F32

# Rows of a call. 16 fills the register tiles of current BLAS kernels, so fewer rows would be little
# faster; by 128 rows the repacking of W that every call pays has become cheap.
SMALL_TILE = 16
LARGE_TILE = 128


class RowMatmul:
    """x [rows, k] -> x @ weight.T [rows, n], float32."""

    def __init__(self, weight: F32) -> None:
        assert weight.dtype == np.float32 and weight.ndim == 2, (weight.dtype, weight.shape)
        self._columns = weight.T
        self._large = large_tile_agrees(*weight.shape)

    def __call__(self, x: F32) -> F32:
        rows = x.shape[0]
        out = np.empty((rows, self._columns.shape[1]), np.float32)
        start = 0
        for size in tiles(rows, large=LARGE_TILE if self._large else None, small=SMALL_TILE):
            stop = min(start + size, rows)
            tile = x[start:stop]
            if stop - start < size:
                tile = np.zeros((size, x.shape[1]), np.float32)
                tile[: stop - start] = x[start:stop]
            out[start:stop] = np.matmul(tile, self._columns)[: stop - start]
            start = stop
        return out


def tiles(rows: int, *, large: int | None, small: int) -> list[int]:
    """Sizes of consecutive tiles that cover `rows`: large ones while they fit, then small ones."""
    count = 0 if large is None else rows // large
    rest = rows - count * (large or 0)
    return [large or 0] * count + [small] * -(-rest // small)


@functools.cache
def large_tile_agrees(n: int, k: int, *, small: int = SMALL_TILE, large: int = LARGE_TILE) -> bool:
    """Whether a product of `large` rows with an [n, k] matrix has the bits of one of `small` rows.

    Tried on random numbers: which order BLAS sums in depends on the shape alone.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((large, k), np.float32)
    columns = rng.standard_normal((n, k), np.float32).T
    whole = np.matmul(x, columns)
    starts = (0, (large // 2) // small * small, large - small)
    return all(
        np.array_equal(np.matmul(x[at : at + small], columns), whole[at : at + small])
        for at in starts
    )
