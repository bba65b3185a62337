"""The written order of every float operation, checked bit for bit by a program of its own.

The ISAs share one source, so their agreement alone would not notice a changed rule (split size,
lanes, fold tree, exp polynomial).
A fused multiply-add is emulated in float64: the product is exact there, and the second rounding
matters too rarely to meet these fixed inputs.
"""

from collections.abc import Callable

import numpy as np
import pytest

from tests.parity.kernels import (
    ISAS,
    assert_same_bits,
    native,
    norm_rows,
    short_scale,
    silu_mul,
)

F = np.float32


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    wide = np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)
    return wide.astype(F)


def fold16(lanes: np.ndarray) -> np.float32:
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    return lanes[0]


def exp(x: np.ndarray) -> np.ndarray:
    """csrc/cpu/vec_math.h, exp_clamped."""
    x = np.clip(x, F(-87), F(87)).astype(F)
    n = np.rint(x.astype(np.float64) * np.float64(F(1.44269504))).astype(F)
    r = fma(n, F(-float.fromhex("0x1.62e430p-1")), x)
    r = fma(n, F(float.fromhex("0x1.05c610p-29")), r)
    p = np.full_like(x, F(float.fromhex("0x1.6a23ccp-10")))
    for c in ("0x1.123a20p-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2", "1p0", "1p0"):
        p = fma(p, r, F(float.fromhex(c)))
    return np.ldexp(p, n.astype(int)).astype(F)


def exp_nonpositive(x: np.ndarray) -> np.ndarray:
    return np.where(x < -87, F(0), exp(x)).astype(F)


def to_int8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales of heads [..., head_dim], as csrc/cpu/quantize.h says."""
    scale = short_scale(np.abs(x).max(axis=-1))
    return np.rint(x / scale[..., None]).astype(np.int64), scale


def float_scores(q: np.ndarray, k: np.ndarray, scale: np.float32) -> np.ndarray:
    scores = np.zeros(len(k), F)
    for d in range(q.size):
        scores = fma(q[d], k[:, d], scores)
    return scores * scale


def int8_scores(q: np.ndarray, k: np.ndarray, scale: np.float32) -> np.ndarray:
    (keys, k_scale), (query, q_scale) = to_int8(k), to_int8(q)
    return ((keys @ query).astype(F) * k_scale) * (q_scale * scale)


def float_sum(p: np.ndarray, v: np.ndarray, positions: np.ndarray) -> np.ndarray:
    o = np.zeros(v.shape[1], F)
    for position, weight in zip(positions, p, strict=True):
        o = fma(weight, v[position], o)
    return o


def int8_sum(p: np.ndarray, v: np.ndarray, positions: np.ndarray) -> np.ndarray:
    values, v_scale = to_int8(v[positions])
    weights = p * v_scale
    o = np.zeros(v.shape[1], F)
    for tile in np.unique(positions // 16):
        inside = positions // 16 == tile
        largest = max(F(1e-30), weights[inside].max())
        u = np.rint(weights[inside] * (F(255) / largest)).astype(np.int64)
        o = fma(largest / F(255), (u @ values[inside]).astype(F), o)
    return o


def attend(scores: np.ndarray, v: np.ndarray, start: int, weighted_sum: Callable) -> np.ndarray:
    """One query over positions start .. len(v) - 1, as csrc/cpu/attention_impl.h says."""
    total = None
    for base in range(start // 256 * 256, len(v), 256):
        positions = np.arange(max(base, start), min(base + 256, len(v)))
        m = scores[positions].max()
        p = exp_nonpositive(scores[positions] - m)
        lanes = np.zeros(16, F)
        for position, weight in zip(positions, p, strict=True):
            lanes[position % 16] += weight
        part = (m, fold16(lanes), weighted_sum(p, v, positions))
        total = part if total is None else _merge(total, part)
    assert total is not None
    return total[2] / total[1]


def _merge(x: tuple, y: tuple) -> tuple:
    highest = max(x[0], y[0])
    a, b = exp_nonpositive(np.array([x[0] - highest, y[0] - highest], F))
    return highest, fma(x[1], a, y[1] * b), fma(x[2], a, y[2] * b)


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_attention_order(dtype: str) -> None:
    rng = np.random.default_rng(1)
    length, dim = 700, 32
    q = rng.standard_normal((1, 2, dim)).astype(F)
    k, v = rng.standard_normal((2, length, 1, dim)).astype(F)
    table = rng.permutation(44).astype(np.int32)
    positions = np.arange(length)
    slots = table[positions // 16].astype(np.int64) * 16 + positions % 16
    score, weighted_sum = {"f32": (float_scores, float_sum), "int8": (int8_scores, int8_sum)}[dtype]
    for isa in ISAS:
        cache = native.KVCacheLayer(dtype, 1, dim, 16, 44)
        cache.write(isa, slots, k, v)
        for window in (0, 450):
            out = np.zeros_like(q)
            cache.attend(isa, q, table, length - 1, 0.4, 0.0, window, out)
            for head in range(2):
                scores = score(q[0, head], k[:, 0], F(0.4))
                start = length - window if window else 0
                assert_same_bits(out[0, head], attend(scores, v[:, 0], start, weighted_sum))


def test_norm_order() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(90).astype(F)
    weight = rng.uniform(0.5, 2, 90).astype(F)
    lanes = np.zeros(16, F)
    for i in range(90):
        lanes[i % 16] = fma(x[i], x[i], lanes[i % 16])
    mean = fold16(lanes) / F(90)
    r = F(1) / np.sqrt(mean + F(1e-5))
    for isa in ISAS:
        rows = norm_rows(isa, x[None], weight, "f32", add_one=1.0)
        assert_same_bits(rows.values[0], (x * r) * (weight + F(1)))


def test_silu_order() -> None:
    x = np.linspace(-100, 100, 4001).astype(F)
    expected = x / (F(1) + exp(-x))
    for isa in ISAS:
        assert_same_bits(silu_mul(isa, x[None], np.ones_like(x)[None], "f32").values[0], expected)


def test_exp_accuracy() -> None:
    """0.9 ulp over the whole range attention uses."""
    x = -np.random.default_rng(3).uniform(0, 87, 200_000).astype(F)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(exp(x).astype(np.float64) - exact) / np.spacing(exact.astype(F))
    assert error.max() < 0.9
