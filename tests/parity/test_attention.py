"""Paged attention and KV writes: against NumPy, every ISA bit for bit, any tiling the same bits."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.parity.kernels import (
    ISAS,
    assert_same_bits,
    bf16_to_f32,
    f32_to_bf16,
    native,
    short_scale,
)
from tests.parity.tolerances import tolerance

DTYPES = ("f32", "bf16", "int8")


@dataclasses.dataclass(slots=True, frozen=True)
class Case:
    """One sequence of `first + rows` positions whose last `rows` ask."""

    rows: int
    group: int
    head_dim: int
    first: int
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    kv_heads: int = 2
    scale: float = 0.3

    @property
    def length(self) -> int:
        return self.first + self.rows


# Rows 1 .. 17, groups 1 .. 9, dims with and without a 16-lane tail, lengths around the tile (16)
# and the split (256), windows that cut splits and rows, all block sizes.
CASES = [
    Case(rows=1, group=1, head_dim=16, first=0),
    Case(rows=1, group=3, head_dim=64, first=699, block_size=32),
    Case(rows=2, group=9, head_dim=32, first=254),
    Case(rows=17, group=3, head_dim=64, first=0),
    Case(rows=17, group=2, head_dim=80, first=250, block_size=48),
    Case(rows=5, group=7, head_dim=96, first=300, window=100),
    Case(rows=16, group=1, head_dim=112, first=240, window=3),
    Case(rows=3, group=4, head_dim=128, first=511, softcap=20.0),
    Case(rows=13, group=5, head_dim=20, first=37, window=40, softcap=5.0),
    Case(rows=9, group=8, head_dim=4, first=15, window=1),
    Case(rows=11, group=6, head_dim=48, first=513, block_size=64, window=256),
    Case(rows=17, group=1, head_dim=256, first=100, kv_heads=1),
]


@dataclasses.dataclass(slots=True, frozen=True)
class Inputs:
    q: np.ndarray  # [rows, kv_heads * group, head_dim]
    k: np.ndarray  # [length, kv_heads, head_dim]
    v: np.ndarray
    block_table: np.ndarray


def _inputs(case: Case, seed: int = 0) -> Inputs:
    rng = np.random.default_rng([seed, case.rows, case.head_dim, case.first])
    shape = (case.length, case.kv_heads, case.head_dim)
    q = rng.standard_normal((case.rows, case.kv_heads * case.group, case.head_dim))
    blocks = -(-case.length // case.block_size)
    return Inputs(
        q.astype(np.float32),
        rng.standard_normal(shape).astype(np.float32),
        (rng.standard_normal(shape) + 0.5).astype(np.float32),
        rng.permutation(blocks + 3)[:blocks].astype(np.int32),
    )


def _filled(case: Case, inputs: Inputs, dtype: str, isa: str):
    """A cache whose every other byte is 0xff (NaN in every dtype's scales and floats)."""
    size = case.block_size
    cache = native.KVCacheLayer(dtype, case.kv_heads, case.head_dim, size,
                                int(inputs.block_table.max()) + 1)
    positions = np.arange(case.length)
    slots = inputs.block_table[positions // size].astype(np.int64) * size + positions % size
    cache.write(isa, slots, inputs.k, inputs.v)
    return cache


def _attend(cache, case: Case, inputs: Inputs, isa: str, row: int = 0,
            count: int | None = None, part_splits: int = 0) -> np.ndarray:
    q = np.ascontiguousarray(inputs.q[row : None if count is None else row + count])
    out = np.full_like(q, np.nan)
    cache.attend(isa, q, inputs.block_table, case.first + row, case.scale, case.softcap,
                 case.window, out, part_splits=part_splits)
    return out


def _as_int8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales [..., 1], as float64."""
    scale = short_scale(np.abs(x).max(axis=-1, keepdims=True))
    return np.rint(x / scale).astype(np.float64), scale.astype(np.float64)


def _as_stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """What the cache gives back for x, as float64."""
    if dtype == "bf16":
        return bf16_to_f32(f32_to_bf16(x)).astype(np.float64)
    if dtype == "int8":
        return np.multiply(*_as_int8(x))
    return x.astype(np.float64)


def _weights_of_tiles(w: np.ndarray, start: int) -> np.ndarray:
    """w, the weights of positions start .., as multiples of a 255th of their tile's largest one."""
    tiles = (start + np.arange(len(w))) // 16 - start // 16
    largest = np.zeros(tiles[-1] + 1)
    np.maximum.at(largest, tiles, w)
    step = np.maximum(largest, 1e-30)[tiles] / 255
    return np.rint(w / step) * step


def _expected(case: Case, inputs: Inputs, dtype: str, *,
              weights_rounded: bool = True) -> np.ndarray:
    """The reference; int8 with queries, and unless told otherwise probabilities, as integers."""
    k, v = _as_stored(inputs.k, dtype), _as_stored(inputs.v, dtype)
    q = _as_stored(inputs.q, "int8" if dtype == "int8" else "f32")
    out = np.zeros(inputs.q.shape)
    for row, head in itertools.product(range(case.rows), range(inputs.q.shape[1])):
        end = case.first + row + 1
        start = max(0, end - case.window) if case.window else 0
        seen = slice(start, end), head // case.group
        scores = k[seen] @ q[row, head] * case.scale
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        p = np.exp(scores - scores.max())
        if dtype == "int8" and weights_rounded:
            stored, scale = _as_int8(inputs.v[seen])
            out[row, head] = _weights_of_tiles(p * scale[:, 0], start) @ stored / p.sum()
        else:
            out[row, head] = p @ v[seen] / p.sum()
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"r{c.rows}g{c.group}d{c.head_dim}@{c.first}")
def test_attention(case: Case, dtype: str) -> None:
    inputs = _inputs(case)
    caches = {isa: _filled(case, inputs, dtype, isa) for isa in ISAS}
    out = _attend(caches["generic"], case, inputs, "generic")
    np.testing.assert_allclose(out, _expected(case, inputs, dtype), **tolerance("attention", dtype))
    for isa in ISAS:
        assert caches[isa].bytes() == caches["generic"].bytes()
        assert_same_bits(_attend(caches[isa], case, inputs, isa), out)
        # one row at a time, and an uneven cut: the same bits
        for row in range(case.rows):
            alone = _attend(caches[isa], case, inputs, isa, row, 1)
            assert_same_bits(alone[0], out[row])
        cut = case.rows // 3
        if cut:
            assert_same_bits(_attend(caches[isa], case, inputs, isa, 0, cut), out[:cut])
            assert_same_bits(_attend(caches[isa], case, inputs, isa, cut), out[cut:])


@pytest.mark.parametrize("seed", range(60))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % 3]
    case = Case(
        rows=int(rng.integers(1, 18)), group=int(rng.integers(1, 10)),
        head_dim=int(rng.integers(1, 9)) * (16 if seed % 4 else 4),
        first=int(rng.integers(0, 684)), block_size=int(rng.integers(1, 5)) * 16,
        window=int(rng.integers(0, 2) * rng.integers(1, 700)), kv_heads=int(rng.integers(1, 4)),
        scale=float(rng.uniform(0.05, 0.5)),
    )
    inputs = _inputs(case, seed)
    cache = _filled(case, inputs, dtype, "generic")
    out = _attend(cache, case, inputs, "generic")
    np.testing.assert_allclose(out, _expected(case, inputs, dtype), **tolerance("attention", dtype))
    row = int(rng.integers(0, case.rows))
    for isa in ISAS:
        assert_same_bits(_attend(cache, case, inputs, isa), out)
        assert_same_bits(_attend(cache, case, inputs, isa, row, 1)[0], out[row])
        # cut along the context, parts computed last to first
        for part_splits in (1, 2):
            parts = _attend(cache, case, inputs, isa, part_splits=part_splits)
            assert_same_bits(parts, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group, head_dim, window, softcap, block_size, rows, shared", [
    (1, 64, 0, 0.0, 16, 17, (0, 2)), (3, 64, 0, 0.0, 32, 16, (0, 2)),
    (3, 80, 0, 0.0, 48, 5, (1, 2)), (8, 128, 0, 20.0, 16, 5, (0, 1)),
    (2, 36, 600, 0.0, 16, 9, (1, 2)), (40, 16, 0, 0.0, 16, 2, (0, 2)),
])
def test_splits_of_several_sequences(group: int, head_dim: int, window: int, softcap: float,
                                     block_size: int, rows: int, shared: tuple[int, int],
                                     dtype: str) -> None:
    """Splits that sequences have in common, computed in one call, leave every row's bits alone."""
    blocks = -(-768 // block_size)
    common = 512 // block_size  # leading blocks, and where a split ends inside one, that one too
    common += 512 % block_size > 0
    case = Case(rows=rows, group=group, head_dim=head_dim, first=0, block_size=block_size,
                window=window, softcap=softcap)
    rng = np.random.default_rng([group, head_dim, rows])
    tables = np.empty((rows, blocks), np.int32)
    tables[:] = rng.permutation(common)[np.arange(blocks) % common]
    tables[:, common:] = common + np.arange(rows * (blocks - common)).reshape(rows, -1)
    q = rng.standard_normal((rows, 2 * group, head_dim)).astype(np.float32)
    positions = rng.integers(common * block_size, 767 if not window else 700, rows).astype(np.int32)
    positions[0] = common * block_size
    slots = np.arange((tables.max() + 1) * block_size)
    k, v = rng.standard_normal((2, len(slots), 2, head_dim)).astype(np.float32)
    for isa in ISAS:
        cache = native.KVCacheLayer(dtype, 2, head_dim, block_size, int(tables.max()) + 1)
        cache.write(isa, slots, k, v)
        out = np.full_like(q, np.nan)
        cache.attend_members(isa, q, tables, positions, case.scale, softcap, window, out, *shared)
        for row in range(rows):
            alone = np.full_like(q[:1], np.nan)
            cache.attend(isa, q[row : row + 1], tables[row], int(positions[row]), case.scale,
                         softcap, window, alone)
            assert_same_bits(out[row], alone[0])


@pytest.mark.parametrize("group, head_dim, window, softcap", [
    (1, 32, 0, 0.0), (3, 64, 0, 0.0), (8, 64, 300, 0.0), (2, 128, 0, 30.0), (5, 80, 0, 0.0),
    (4, 256, 777, 0.0),
])
def test_int8_keeps_what_a_sink_leaves(group: int, head_dim: int, window: int,
                                       softcap: float) -> None:
    """A position that takes 90 % of the attention costs the others no precision, nor do outliers
    among keys and values: every tile of 16 positions has its own scale."""
    case = Case(rows=3, group=group, head_dim=head_dim, first=1201, window=window,
                softcap=softcap, kv_heads=1, scale=head_dim**-0.5)
    inputs = _inputs(case)
    exact = _expected(case, inputs, "f32")
    sink = max(0, case.length - window) if window else 0
    inputs.k[sink] = 0.7 * inputs.q.mean(axis=(0, 1)) * head_dim**0.5  # every query likes it
    inputs.v[sink] *= 0.01
    inputs.k[700, 0, 3] = 40.0
    inputs.v[900, 0, 5] = 60.0
    exact = _expected(case, inputs, "f32")
    out = _attend(_filled(case, inputs, "int8", "generic"), case, inputs, "generic")
    error = np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2))
    rounded = np.sqrt(np.mean((_expected(case, inputs, "int8", weights_rounded=False) - exact) ** 2)
                      / np.mean(exact**2))
    assert error < 0.03  # of which the 8 bits of Q, K and V make most
    assert error < 1.2 * rounded + 0.003
    for isa in ISAS:
        assert_same_bits(_attend(_filled(case, inputs, "int8", isa), case, inputs, isa), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_later_tokens_and_block_order_do_not_matter(isa: str, dtype: str) -> None:
    """A row's bits depend neither on where its blocks lie nor on what follows its position."""
    case = Case(rows=6, group=3, head_dim=64, first=290, window=200)
    inputs = _inputs(case)
    out = _attend(_filled(case, inputs, dtype, isa), case, inputs, isa)
    moved = dataclasses.replace(inputs, block_table=inputs.block_table[::-1].copy())
    assert_same_bits(_attend(_filled(case, moved, dtype, isa), case, moved, isa), out)
    inputs.k[-1], inputs.v[-1] = np.nan, np.inf  # only the last row may see the last position
    poisoned = _attend(_filled(case, inputs, dtype, isa), case, inputs, isa)
    assert_same_bits(poisoned[:-1], out[:-1])
    assert np.isnan(poisoned[-1]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_int8_scales(isa: str) -> None:
    """Scales are absmax / 127, rounded up, per token and head; a token of zeros has scale 0."""
    case = Case(rows=1, group=1, head_dim=32, first=4, kv_heads=1)
    inputs = _inputs(case)
    inputs.k[2] = inputs.v[2] = 0
    cache = _filled(case, inputs, "int8", isa)
    raw = np.frombuffer(cache.bytes(), np.uint8)
    block = raw.reshape(int(inputs.block_table[0]) + 1, -1)[inputs.block_table[0]]
    plane = 16 * 32
    scales = block[2 * plane : 2 * plane + 128].view(np.float32)
    for stored, x in ((scales[:5], inputs.k), (scales[16:21], inputs.v)):
        np.testing.assert_array_equal(stored, short_scale(np.abs(x[:5, 0]).max(axis=1)))
    # token t of a K tile: 4 bytes, 128 added, at quad * 64 + t * 4; V: chunks of 16 columns, in
    # them quads of 4 tokens
    k_tile = (block[:plane] ^ 0x80).view(np.int8).reshape(8, 16, 4)
    v_tile = block[plane : 2 * plane].view(np.int8).reshape(2, 4, 16, 4)
    v_rows = v_tile.transpose(1, 3, 0, 2).reshape(16, 32)
    for t in (0, 1, 3, 4):
        for stored, x, scale in ((k_tile[:, t].reshape(-1), inputs.k, scales[t]),
                                 (v_rows[t], inputs.v, scales[16 + t])):
            np.testing.assert_array_equal(stored, np.rint(x[t, 0] / scale).astype(np.int8))
    assert (k_tile[:, 2] == 0).all()
    assert np.isfinite(_attend(cache, case, inputs, isa)).all()


def test_large_scores_do_not_overflow() -> None:
    case = Case(rows=4, group=2, head_dim=16, first=600, kv_heads=1, scale=1000.0)
    inputs = _inputs(case)
    outs = [_attend(_filled(case, inputs, "f32", isa), case, inputs, isa) for isa in ISAS]
    np.testing.assert_allclose(outs[0], _expected(case, inputs, "f32"), rtol=5e-3, atol=5e-3)
    for out in outs[1:]:
        assert_same_bits(out, outs[0])
