"""Dequantization against the `gguf` package, bit for bit; quantizers against its error."""

import gguf
import numpy as np
import pytest

from octavo.weights.dequant import dequantize, iq4_nl_as_q8_0
from octavo.weights.quant_types import QUANT_TYPES
from octavo.weights.quantize import WRITABLE_TYPES, quantize, storable_type, to_bf16

COLUMNS = 512
GGUF_TYPES = [kind.name for kind in QUANT_TYPES.values() if kind.gguf_id is not None]
# Relative root-mean-square error of each type on normal values. The bounds are about 1.1 times
# what a careful least-squares fit gives, so a layout slip or a lazy scale fails.
ERROR_BOUNDS = {
    "F32": 0.0, "F16": 3e-4, "BF16": 2e-3, "Q4_0": 0.09, "Q4_1": 0.08, "Q5_0": 0.046,
    "Q5_1": 0.039, "Q8_0": 0.006, "Q4_K": 0.081, "Q5_K": 0.041, "Q6_K": 0.02,
}  # fmt: skip


def oracle(raw: np.ndarray, quant: str) -> np.ndarray:
    with np.errstate(all="ignore"):  # random bytes hold infinities and NaN
        return gguf.dequantize(raw, gguf.GGMLQuantizationType(QUANT_TYPES[quant].gguf_id))


@pytest.mark.parametrize("quant", GGUF_TYPES)
def test_type_table_is_the_formats(quant: str) -> None:
    kind = QUANT_TYPES[quant]
    theirs = gguf.GGMLQuantizationType(kind.gguf_id)
    assert theirs.name == quant
    assert gguf.GGML_QUANT_SIZES[theirs] == (kind.block_size, kind.block_bytes)


@pytest.mark.parametrize("quant", GGUF_TYPES)
def test_random_blocks_dequantize_to_the_oracles_bits(quant: str) -> None:
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, (16, QUANT_TYPES[quant].row_bytes(COLUMNS)), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantize(raw, quant, COLUMNS)
    theirs = oracle(raw, quant)
    assert ours.dtype == np.float32 and ours.shape == (16, COLUMNS)
    assert ours.view(np.uint32).tolist() == theirs.view(np.uint32).tolist()


def test_every_scale_of_the_small_exponents_is_the_oracles() -> None:
    """MXFP4 has an exponent a block: all 256, so that subnormal scales are among them."""
    raw = np.random.default_rng(8).integers(0, 256, (256, 17), dtype=np.uint8)
    raw[:, 0] = np.arange(256)
    with np.errstate(all="ignore"):
        ours = dequantize(raw, "MXFP4", 32)
    assert ours.view(np.uint32).tolist() == oracle(raw, "MXFP4").view(np.uint32).tolist()


def test_iq4_nl_is_exact_in_q8_0() -> None:
    raw = np.random.default_rng(9).integers(0, 256, (6, 18 * 4), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wide = dequantize(iq4_nl_as_q8_0(raw), "Q8_0", 128)
        expected = dequantize(raw, "IQ4_NL", 128)
    assert wide.view(np.uint32).tolist() == expected.view(np.uint32).tolist()


@pytest.mark.parametrize("quant", ["INT4", "INT4_MIN", "INT8", "INT8_MIN"])
def test_blocks_with_f32_scales(quant: str) -> None:
    """Each weight of random blocks, by its own formula."""
    random = np.random.default_rng(11)
    codes = random.integers(0, 16 if "INT4" in quant else 256, (3, 2, 32))
    d, m = random.standard_normal((2, 3, 2)).astype(np.float32)
    rows = []
    for row in range(3):
        data = b""
        for block in range(2):
            q = codes[row, block].tolist()
            data += d[row, block].tobytes() + (m[row, block].tobytes() if "MIN" in quant else b"")
            if "INT4" in quant:
                q = [q[i] | q[i + 16] << 4 for i in range(16)]
            data += bytes(q)
        rows.append(np.frombuffer(data, np.uint8))
    zero = {"INT4": 8, "INT8": 0}.get(quant, 0)
    signed = np.where(codes > 127, codes - 256, codes) if quant == "INT8" else codes - zero
    expected = d[:, :, None] * signed.astype(np.float32)
    if "MIN" in quant:
        expected = expected + m[:, :, None]
    assert (dequantize(np.stack(rows), quant, 64) == expected.reshape(3, 64)).all()


def test_chunks_cover_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.random.default_rng(2).integers(0, 100, (7, 34 * 4), dtype=np.uint8)
    whole = dequantize(raw, "Q8_0", 128)
    monkeypatch.setattr("octavo.weights.dequant.CHUNK_ELEMENTS", 2 * 128)
    out = np.full((7, 128), 99, np.float32)
    assert dequantize(raw, "Q8_0", 128, out) is out
    assert (out == whole).all()


@pytest.mark.parametrize("quant", WRITABLE_TYPES)
def test_quantizers_keep_the_error_small(quant: str) -> None:
    values = (np.random.default_rng(3).standard_normal((64, COLUMNS)) * 0.02).astype(np.float32)
    packed = quantize(values, quant)
    back = oracle(packed, quant)
    error = np.sqrt(np.mean((back - values) ** 2) / np.mean(values**2))
    assert error <= ERROR_BOUNDS[quant]
    try:
        theirs = gguf.quantize(values, gguf.GGMLQuantizationType(QUANT_TYPES[quant].gguf_id))
    except NotImplementedError:
        return  # the package only reads K types
    assert error <= 1.001 * np.sqrt(np.mean((oracle(theirs, quant) - values) ** 2)
                                    / np.mean(values**2))  # fmt: skip


@pytest.mark.parametrize("quant", WRITABLE_TYPES)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.75])
def test_constant_rows_survive(quant: str, value: float) -> None:
    values = np.full((2, 256), value, np.float32)
    back = dequantize(quantize(values, quant), quant, 256)
    assert np.abs(back - value).max() <= 0.01 * abs(value)


def test_requantizing_a_quantized_tensor_is_exact() -> None:
    values = np.random.default_rng(4).standard_normal((8, 256)).astype(np.float32)
    for quant in ("F16", "BF16", "Q4_1", "Q8_0"):
        once = dequantize(quantize(values, quant), quant, 256)
        again = dequantize(quantize(once, quant), quant, 256)
        assert np.abs(again - once).max() <= 1e-6 * np.abs(once).max(), quant


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0x7F800001], np.uint32)
    assert to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7FC0]


def test_k_types_fall_back_where_rows_are_no_whole_blocks() -> None:
    assert storable_type("Q4_K", 512) == "Q4_K"
    assert [storable_type(q, 576) for q in ("Q4_K", "Q5_K", "Q6_K")] == ["Q5_0", "Q5_1", "Q8_0"]
    assert storable_type("Q4_K", 40) == "F16"
