"""Norms, rope, SwiGLU and their stored forms: against NumPy, and every ISA bit for bit."""

import numpy as np
import pytest

from tests.parity.kernels import (
    ISAS,
    KINDS,
    Rows,
    assert_same_bits,
    f32_to_bf16,
    native,
    norm_rows,
    short_scale,
    silu_mul,
)
from tests.parity.tolerances import tolerance

SHAPES = [(1, 32), (2, 576), (17, 96), (5, 1056)]
ODD_SHAPES = [(1, 4), (3, 20), (2, 577), (4, 15)]  # for unquantized rows


def _shapes(kind: str) -> list[tuple[int, int]]:
    return SHAPES if kind == "int8" else SHAPES + ODD_SHAPES


def _values(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Normal values of very different row scales."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-4, 4, (*shape[:-1], 1))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _check_rows(rows: Rows, expected: np.ndarray, op: str) -> None:
    if rows.kind != "int8":
        np.testing.assert_allclose(rows.as_float(), expected, **tolerance(op, rows.kind))
        return
    assert rows.scale is not None and rows.isum is not None and rows.fsum is not None
    groups = expected.reshape(len(expected), -1, 32)
    exact = np.abs(groups).max(2) / 127
    assert (rows.scale >= exact * (1 - 4e-6)).all() and (rows.scale <= exact * (1 + 2**-10)).all()
    assert (rows.scale.view(np.uint32) & np.uint32(0x1FFF) == 0).all()  # 11 significant bits
    step = np.repeat(rows.scale, 32, axis=1).astype(np.float64)
    error = np.abs(rows.as_float() - expected)
    assert (error <= step * 0.5001 + 1e-30).all()  # 127 float32 ulps beside half a step
    assert np.abs(rows.values.astype(int)).max() <= 127
    sums = rows.values.reshape(groups.shape).astype(np.int32).sum(2)
    np.testing.assert_array_equal(rows.isum, sums)
    low = rows.values.reshape(groups.shape)[:, :, :16].astype(np.int32).sum(2)
    np.testing.assert_array_equal(rows.isum_low, low)
    np.testing.assert_array_equal(rows.fsum, rows.scale * sums.astype(np.float32))


def _check_isas(make) -> None:
    expected = make("generic")
    for isa in ISAS[1:]:
        for a, b in zip(expected, make(isa), strict=True):
            assert_same_bits(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("add_one", [0.0, 1.0])
def test_norm_rows(isa: str, kind: str, add_one: float) -> None:
    for seed, shape in enumerate(_shapes(kind)):
        x = _values(seed, shape)
        weight = np.random.default_rng(seed).uniform(0.2, 2, shape[1]).astype(np.float32)
        rows = norm_rows(isa, x, weight, kind, add_one=add_one, eps=1e-6)
        wide = x.astype(np.float64)
        rms = np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6)
        _check_rows(rows, wide / rms * (weight + add_one), "norm_rows")
        for i in range(len(x)):  # one row at a time: the same bits
            alone = norm_rows(isa, x[i : i + 1], weight, kind, add_one=add_one, eps=1e-6)
            for a, b in zip(alone.arrays(), rows.arrays(), strict=True):
                assert_same_bits(a[0], b[i])


@pytest.mark.parametrize("kind", KINDS)
def test_conversion_without_norm(kind: str) -> None:
    x = _values(3, (4, 64))
    for isa in ISAS:
        rows = norm_rows(isa, x, None, kind)
        if kind == "f32":
            assert_same_bits(rows.values, x)
        elif kind == "bf16":
            assert_same_bits(rows.values, f32_to_bf16(x))
        else:
            groups = x.reshape(4, 2, 32)
            scale = short_scale(np.abs(groups).max(axis=2))
            assert_same_bits(rows.arrays()[1], scale)
            expected = np.rint(groups / scale[..., None]).reshape(4, 64)
            np.testing.assert_array_equal(rows.values, expected.astype(np.int8))


@pytest.mark.parametrize("isa", ISAS)
def test_quotients_are_those_of_true_division(isa: str) -> None:
    """Values a few units in the last place around ties, with scales from tiny to huge."""
    rng = np.random.default_rng(5)
    exponents = np.concatenate([rng.integers(-100, 100, 4000), rng.integers(-126, 120, 500)])
    scale = np.ldexp(rng.integers(1024, 2048, 4500) / 1024, exponents).astype(np.float32)
    ties = (rng.integers(-127, 127, (4500, 31)) + 0.5) * scale[:, None].astype(np.float64)
    near = ties.astype(np.float32).view(np.int32) + rng.integers(-2, 3, ties.shape, np.int32)
    groups = np.concatenate([(127 * scale)[:, None], near.view(np.float32)], axis=1)
    rows = norm_rows(isa, groups.reshape(-1, 96), None, "int8")
    assert_same_bits(rows.arrays()[1].reshape(-1), scale)
    expected = np.rint(groups / scale[:, None]).astype(np.int8)
    np.testing.assert_array_equal(rows.values.reshape(-1, 32), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isa", ISAS)
def test_silu_mul(isa: str, kind: str) -> None:
    for seed, shape in enumerate(_shapes(kind)):
        rng = np.random.default_rng(seed)
        gate = (rng.standard_normal(shape) * 6).astype(np.float32)
        up = rng.standard_normal(shape).astype(np.float32)
        wide = gate.astype(np.float64)
        expected = wide / (1 + np.exp(-wide)) * up.astype(np.float64)
        _check_rows(silu_mul(isa, gate, up, kind), expected, "silu_mul")


@pytest.mark.parametrize("kind", KINDS)
def test_isas_agree_on_rows(kind: str) -> None:
    for seed, shape in enumerate(_shapes(kind)):
        x, up = _values(seed, shape), _values(seed + 100, shape)
        weight = np.random.default_rng(seed).uniform(0.2, 2, shape[1]).astype(np.float32)
        _check_isas(lambda isa: norm_rows(isa, x, weight, kind).arrays())  # noqa: B023
        _check_isas(lambda isa: norm_rows(isa, x, None, kind).arrays())  # noqa: B023
        _check_isas(lambda isa: silu_mul(isa, x, up, kind).arrays())  # noqa: B023


@pytest.mark.parametrize("kind", KINDS)
def test_strange_values_agree_and_poison(kind: str) -> None:
    """NaN, infinities, subnormals and huge values: no crash, the same bits, NaN is not hidden."""
    x = _values(0, (6, 64))
    x[0, 3], x[1, 40], x[2, 5] = np.nan, np.inf, -np.inf
    x[3] = 1e-44
    x[4] = 3e38
    x[5] = 0
    one = np.ones_like(x)
    _check_isas(lambda isa: norm_rows(isa, x, None, kind).arrays())
    _check_isas(lambda isa: norm_rows(isa, x, np.ones(64, np.float32), kind).arrays())
    _check_isas(lambda isa: silu_mul(isa, x, one, kind).arrays())
    for isa in ISAS:
        plain = norm_rows(isa, x, None, kind).as_float()
        assert np.isnan(plain[0]).any()
        assert not np.isfinite(plain[1]).all()
        assert (plain[5] == 0).all()
        assert (silu_mul(isa, x[5:], one[5:], kind).as_float() == 0).all()


def test_bf16_rounding_is_nearest_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF800000, 0x00008001, 0, 1],
                    np.uint32)
    expected = [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x0001, 0, 0]
    for isa in ISAS:
        rows = norm_rows(isa, bits.view(np.float32)[None], None, "bf16")
        np.testing.assert_array_equal(rows.values[0], expected)


@pytest.mark.parametrize("dim", [4, 20, 64, 80, 128])
def test_head_norm(dim: int) -> None:
    x = _values(dim, (7, dim))
    weight = np.random.default_rng(dim).uniform(0.5, 2, dim).astype(np.float32)
    results = []
    for isa in ISAS:
        y = x.copy()
        native.head_norm(isa, y, weight, 0.0, 1e-6)
        results.append(y)
        assert_same_bits(y, results[0])
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(results[0], expected, **tolerance("head_norm", "f32"))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "dim"), [(64, 64), (80, 80), (128, 32), (20, 12), (8, 4)])
def test_rope(width: int, dim: int, interleaved: bool) -> None:
    rng = np.random.default_rng(dim)
    positions = np.array([0, 1, 17, 400], np.int32)
    angles = np.arange(401)[:, None] * 10000.0 ** (-np.arange(dim // 2) * 2 / dim)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    x = rng.standard_normal((4, width)).astype(np.float32)
    results = []
    for isa in ISAS:
        y = x.copy()
        native.rope(isa, y, cos, sin, interleaved, positions)
        results.append(y)
        assert_same_bits(y, results[0])
    expected = x.astype(np.float64)
    first = np.arange(0, dim, 2) if interleaved else np.arange(dim // 2)
    second = first + 1 if interleaved else first + dim // 2
    a, b = expected[:, first], expected[:, second]
    c, s = cos[positions].astype(np.float64), sin[positions].astype(np.float64)
    expected[:, first], expected[:, second] = a * c - b * s, b * c + a * s
    np.testing.assert_allclose(results[0], expected, **tolerance("rope", "f32"))
    assert_same_bits(results[0][:, dim:], x[:, dim:])
