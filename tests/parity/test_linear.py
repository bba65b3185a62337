"""Packing and matrix products: against NumPy, across ISAs, and row by row."""

import numpy as np
import numpy.typing as npt
import pytest

from octavo.backends.cpu.storage import storage_of
from octavo.weights.dequant import dequantize
from octavo.weights.quant_types import QUANT_TYPES
from octavo.weights.quantize import quantize
from tests.parity.kernels import ISAS, assert_same_bits, bf16_to_f32, native, norm_rows

LINEAR_ISAS = list(ISAS)
if native.has_avx512bf16():
    LINEAR_ISAS.append("avx512bf16")
if native.has_neondot():
    LINEAR_ISAS.append("neondot")

F32_SCALES = ("INT4", "INT4_MIN", "INT8", "INT8_MIN")
SUPER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
INTEGER = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *SUPER, "MXFP4", *F32_SCALES)
FLOAT = ("F32", "F16", "BF16")
COLUMNS = {"F32": (7, 96), "F16": (10, 96), "BF16": (10, 96)} | dict.fromkeys(SUPER, (256, 768))
WITH_MINIMA = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K", "INT4_MIN", "INT8_MIN")
# Types nobody writes here: any bytes are blocks, with f16 scales at these places (of any sign).
READ_ONLY = {"Q2_K": (80, 82), "Q3_K": (108,), "MXFP4": ()}
# rows, rows of a group: whole panels, a partial last panel, heads that do not fill their panels
SHAPES = ((16, 16), (37, 37), (72, 24), (80, 80))
# 17 and 33 split into uneven tiles; 40 needs three
MANY = (1, 2, 3, 5, 8, 15, 16, 17, 33, 40)
# The products sum a few hundred terms of size 1; bf16 keeps 8 bits of each activation.
TOLERANCE = {"F32": 1e-5, "F16": 1e-5, "BF16": 2e-5}


def cases(quants: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(quant, k) for quant in quants for k in COLUMNS.get(quant, (32, 96, 576))]


def matrix_of(quant: str, rows: int, k: int, group_rows: int, seed: int = 1) -> tuple:
    """(native matrix, its float32 meaning [rows, k])."""
    rng = np.random.default_rng([seed, rows, k])
    if quant in READ_ONLY:
        raw = random_blocks(rng, quant, rows, k)
    else:
        values = rng.standard_normal((rows, k), np.float32) + np.float32(0.3)
        raw = f32_scales(values, quant) if quant in F32_SCALES else quantize(values, quant)
    packed = native.TestMatrix(storage_of(quant, k).type_id, rows, k, group_rows, raw.reshape(-1))
    return packed, dequantize(raw, quant, k)


def f32_scales(values: npt.NDArray[np.float32], quant: str) -> npt.NDArray[np.uint8]:
    """`values` in a type with f32 scales: the codes' whole range is used."""
    kind = QUANT_TYPES[quant]
    grid = values.reshape(-1, 32)
    low, high = grid.min(axis=1, keepdims=True), grid.max(axis=1, keepdims=True)
    most = 15 if kind.block_bytes < 32 else 255
    if "MIN" in quant:
        d, m = (high - low) / np.float32(most), low
        codes = np.clip(np.rint((grid - m) / d), 0, most)
        head = np.concatenate([d, m], axis=1)
    else:
        head = np.maximum(high, -low) / np.float32(most // 2)
        codes = np.clip(np.rint(grid / head), -(most + 1) // 2, most // 2)
        codes += 8 if most == 15 else 0
    codes = codes.astype(np.int16).astype(np.uint8)
    payload = codes[:, :16] | (codes[:, 16:] << 4) if most == 15 else codes
    packed = np.concatenate([head.view(np.uint8), payload], axis=1)
    return packed.reshape(values.shape[0], -1)


def random_blocks(rng: np.random.Generator, quant: str, rows: int, k: int) -> npt.NDArray:
    kind = QUANT_TYPES[quant]
    blocks = rng.integers(0, 256, (rows * k // kind.block_size, kind.block_bytes), np.uint8)
    for at in READ_ONLY[quant]:
        scale = rng.standard_normal((len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    if quant == "MXFP4":
        blocks[:, 0] = rng.integers(100, 140, len(blocks))
    return blocks.reshape(rows, -1)


def rows_of(m: int, k: int, seed: int = 2) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng([seed, m, k])
    return rng.standard_normal((m, k), np.float32) * np.exp2(
        rng.integers(-6, 7, (m, 1))
    ).astype(np.float32)


def product(packed, isa: str, x: npt.NDArray, rows: int, group_rows: int) -> npt.NDArray:
    """[m, rows]: the padding columns taken out."""
    out = np.full((x.shape[0], packed.panels * 16), np.nan, np.float32)
    packed.product(isa, x, out)
    padded = -(-group_rows // 16) * 16
    groups = out.reshape(x.shape[0], rows // group_rows, padded)
    return np.ascontiguousarray(groups[:, :, :group_rows].reshape(x.shape[0], rows))


@pytest.mark.parametrize(("quant", "k"), cases(INTEGER + FLOAT))
@pytest.mark.parametrize(("rows", "group_rows"), SHAPES)
def test_a_packed_row_reads_back_exactly(quant: str, k: int, rows: int, group_rows: int) -> None:
    packed, meaning = matrix_of(quant, rows, k, group_rows)
    out = np.empty((rows, k), np.float32)
    packed.unpack_rows(out)
    if quant in WITH_MINIMA:
        # d * q + m: one rounding here, two in NumPy
        np.testing.assert_allclose(out, meaning, rtol=0, atol=1e-6 * np.abs(meaning).max())
    else:
        np.testing.assert_array_equal(out, meaning)


@pytest.mark.parametrize("isa", LINEAR_ISAS)
@pytest.mark.parametrize(("quant", "k"), cases(INTEGER))
@pytest.mark.parametrize(("rows", "group_rows"), SHAPES)
def test_integer_products_mean_what_numpy_says(
    isa: str, quant: str, k: int, rows: int, group_rows: int
) -> None:
    """On the quantized activations themselves, so only float32 rounding is left."""
    packed, meaning = matrix_of(quant, rows, k, group_rows)
    x = rows_of(5, k)
    stored = norm_rows("generic", x, None, "int8").as_float()
    expected = stored @ meaning.astype(np.float64).T
    scale = np.abs(stored) @ np.abs(meaning.astype(np.float64)).T
    error = np.abs(product(packed, isa, x, rows, group_rows) - expected) / scale
    assert error.max() < 2e-6


@pytest.mark.parametrize("isa", LINEAR_ISAS)
@pytest.mark.parametrize(("quant", "k"), cases(FLOAT))
@pytest.mark.parametrize(("rows", "group_rows"), SHAPES)
def test_float_products_mean_what_numpy_says(
    isa: str, quant: str, k: int, rows: int, group_rows: int
) -> None:
    packed, meaning = matrix_of(quant, rows, k, group_rows)
    x = rows_of(5, k)
    stored = norm_rows("generic", x, None, "bf16" if quant == "BF16" else "f32").as_float()
    expected = stored @ meaning.astype(np.float64).T
    scale = np.abs(stored) @ np.abs(meaning.astype(np.float64)).T
    error = np.abs(product(packed, isa, x, rows, group_rows) - expected) / scale
    assert error.max() < TOLERANCE[quant]


@pytest.mark.parametrize(
    ("isa", "quant", "k"),
    [
        (isa, quant, k)
        for isa in LINEAR_ISAS[1:]
        for quant, k in cases(INTEGER + FLOAT)
        # vdpbf16ps rounds in its own way: bf16 is bit-equal within an ISA only
        if (isa, quant) != ("avx512bf16", "BF16")
    ],
)
@pytest.mark.parametrize(("rows", "group_rows"), SHAPES)
def test_isas_agree_bit_for_bit(
    isa: str, quant: str, k: int, rows: int, group_rows: int
) -> None:
    packed, _ = matrix_of(quant, rows, k, group_rows)
    for m in (1, 3, 17):
        x = rows_of(m, k)
        assert_same_bits(
            product(packed, isa, x, rows, group_rows),
            product(packed, "generic", x, rows, group_rows),
        )


@pytest.mark.parametrize("isa", LINEAR_ISAS)
@pytest.mark.parametrize(("quant", "k"), cases(INTEGER + FLOAT))
def test_a_row_does_not_depend_on_the_others(isa: str, quant: str, k: int) -> None:
    packed, _ = matrix_of(quant, 80, k, 80)
    x = rows_of(max(MANY), k)
    alone = np.concatenate(
        [product(packed, isa, x[i : i + 1], 80, 80) for i in range(max(MANY))]
    )
    for m in range(1, max(MANY) + 1) if quant in ("Q4_1", "F16", "BF16") else MANY:
        assert_same_bits(product(packed, isa, x[:m], 80, 80), alone[:m])


@pytest.mark.parametrize("isa", LINEAR_ISAS)
@pytest.mark.parametrize("quant", INTEGER)
def test_extreme_activations_stay_exact(isa: str, quant: str) -> None:
    """Saturated int8 against the largest codes: the int32 sums must not wrap or saturate."""
    k = 256 if quant in SUPER else 64
    packed, meaning = matrix_of(quant, 16, k, 16)
    x = np.where(rows_of(4, k) > 0, np.float32(1e6), np.float32(-1e6))
    x[3] = 0  # a row of zeros has scale 0
    result = product(packed, isa, x, 16, 16)
    stored = norm_rows("generic", x, None, "int8").as_float()
    expected = stored @ meaning.astype(np.float64).T
    scale = np.abs(stored) @ np.abs(meaning.astype(np.float64)).T
    assert (np.abs(result - expected) <= 2e-6 * scale).all()
    np.testing.assert_array_equal(result[3], 0)


def test_bf16_activations_are_rounded_to_nearest_even() -> None:
    x = np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32)
    stored = norm_rows("generic", x, None, "bf16").values
    np.testing.assert_array_equal(bf16_to_f32(stored), [[1, 1 + 2**-6]])


def test_a_source_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="row bytes"):
        native.TestMatrix(3, 16, 64, 16, np.zeros(10, np.uint8))
    with pytest.raises(ValueError, match="does not fit"):
        native.arena_bytes(3, 16, 33, 16)
