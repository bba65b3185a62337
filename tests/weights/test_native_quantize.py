"""Native quantization gives the bits of the NumPy reference."""

import numpy as np
import pytest

from octavo.weights import native_quantize
from octavo.weights.dequant import dequantize
from octavo.weights.native_quantize import quantize_matrix
from octavo.weights.quantize import quantize

native = pytest.importorskip("octavo._native", reason="the native module is not built")
COLUMNS = 96


def matrix(rows: int) -> np.ndarray:
    """float32 [rows, COLUMNS] of many sizes, with rows of zeros, equal, tiny, outlying values."""
    rng = np.random.default_rng(rows)
    values = rng.standard_normal((rows, COLUMNS), np.float32)
    values *= np.exp2(rng.integers(-24, 12, (rows, 1))).astype(np.float32)
    special = [
        np.zeros(COLUMNS), np.full(COLUMNS, 3.25), np.full(COLUMNS, -1e-8), np.arange(COLUMNS),
        -np.arange(COLUMNS) - 100, rng.standard_normal(COLUMNS) * 1e-30, rng.random(COLUMNS) + 6e4,
        1000 + 1e-4 * rng.standard_normal(COLUMNS), np.eye(COLUMNS)[3] * 65504, np.eye(COLUMNS)[3],
        rng.choice([-0.0, 0.0, 1e-41], COLUMNS), rng.choice([-1.0, 1.0], COLUMNS),
    ]  # fmt: skip
    count = min(rows, len(special))
    values[:count] = np.array(special, np.float32)[:count]
    return values


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("quant", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("rows", [1, 5, 700])
def test_same_bits_as_numpy(kind: str, quant: str, rows: int) -> None:
    values = matrix(rows)
    if kind == "F16":
        values = np.clip(values, -60000, 60000)
    raw = quantize(values, kind)
    found, peak = quantize_matrix(raw, kind, quant, COLUMNS)
    values = dequantize(raw, kind, COLUMNS)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(found, quantize(values, quant))
    assert peak == np.abs(values).max()


def test_a_lone_block_has_the_bits_it_has_among_others() -> None:
    values = matrix(40)[:, :32].copy()
    alone = [quantize(values[i : i + 1], "Q4_1") for i in range(len(values))]
    np.testing.assert_array_equal(np.concatenate(alone), quantize(values, "Q4_1"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quant", ["Q4_1", "Q8_0", "Q4_0"])
def test_what_is_not_finite_shows_in_the_magnitude(bad: float, quant: str) -> None:
    values = matrix(20)
    values[17, 5] = bad
    _, peak = quantize_matrix(values.view(np.uint8), "F32", quant, COLUMNS)
    assert not np.isfinite(peak)


def test_without_the_native_module(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = matrix(20).view(np.uint8)
    expected = quantize_matrix(raw, "F32", "Q4_1", COLUMNS)
    monkeypatch.setattr(native_quantize, "_native", None)
    found = quantize_matrix(raw, "F32", "Q4_1", COLUMNS)
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_wrong_shapes_are_refused() -> None:
    raw, out = np.zeros((2, 128), np.uint8), np.zeros((2, 20), np.uint8)
    native.quantize(0, 3, raw, 32, out)
    for arguments in ((0, 3, raw, 64, out), (0, 3, raw[:1], 32, out), (0, 3, raw, -32, out),
                      (0, 2, raw, 32, out), (3, 3, raw, 32, out), (99, 3, raw, 32, out)):
        with pytest.raises(ValueError):
            native.quantize(*arguments)
