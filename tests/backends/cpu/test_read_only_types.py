"""Types that are read but never written: on the native executor they are near the reference."""

import dataclasses

import numpy as np
import pytest

from octavo.backends.cpu.storage import source_rows, storage_of
from octavo.testing.toy_model import TinyModel, tiny_llama
from octavo.weights.dequant import dequantize
from octavo.weights.quant_types import QUANT_TYPES
from tests.backends.cpu.running import sequences
from tests.backends.cpu.test_executor import (
    INT8_TOLERANCE,
    cpu_logits,
    error_of,
    reference_logits,
)

# Where a block's f16 scales lie, and values that make weights of about 0.06.
SCALES = {"Q2_K": {80: 0.008, 82: 0.012}, "Q3_K": {108: 0.0015}, "IQ4_NL": {0: 0.0009}}


class RandomBlocks:
    """A WeightSource of random blocks for matrices; vectors come from another one."""

    def __init__(self, model: TinyModel, quant: str) -> None:
        self._vectors = model.weights
        self._quant = quant
        rng = np.random.default_rng(5)
        kind = QUANT_TYPES[quant]
        self._raw: dict[str, np.ndarray] = {}
        self._columns: dict[str, int] = {}
        for name, values in model.tensors.items():
            if values.ndim != 2:
                continue
            rows, columns = values.shape
            blocks = rng.integers(
                0, 256, (rows * columns // kind.block_size, kind.block_bytes), dtype=np.uint8
            )
            for at, scale in SCALES.get(quant, {}).items():
                blocks[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
            if quant == "MXFP4":
                blocks[:, 0] = rng.integers(119, 123, len(blocks))
            self._raw[name], self._columns[name] = blocks.reshape(rows, -1), columns

    def quant_of(self, name: str) -> str:
        return self._quant if name in self._raw else self._vectors.quant_of(name)

    def raw(self, name: str) -> np.ndarray:
        return self._raw[name] if name in self._raw else self._vectors.raw(name)

    def f32(self, name: str) -> np.ndarray:
        if name not in self._raw:
            return self._vectors.f32(name)
        return dequantize(self._raw[name], self._quant, self._columns[name])

    def release(self, name: str) -> None:
        pass


@pytest.mark.parametrize("quant", ["Q2_K", "Q3_K", "IQ4_NL", "MXFP4"])
def test_near_the_reference(quant: str) -> None:
    model = tiny_llama(1, hidden_size=256, num_heads=8, num_kv_heads=2, intermediate_size=512)
    model = dataclasses.replace(model, weights=RandomBlocks(model, quant))
    (token_ids,) = sequences(1, [60], model.graph.vocab_size)
    error = error_of(cpu_logits(model, token_ids), reference_logits(model, token_ids))
    assert error < INT8_TOLERANCE


@pytest.mark.parametrize(("quant", "layout"), [
    ("Q2_K", "q2+min, 8-bit scales"), ("Q3_K", "q3, 8-bit scales"), ("MXFP4", "q5, f32 scales"),
])
def test_how_they_are_kept(quant: str, layout: str) -> None:
    """As they are in the file; tests/parity/test_linear.py reads them back."""
    storage = storage_of(quant, 256)
    assert (storage.layout, storage.via_f32) == (layout, False)


def test_iq4_nl_is_kept_as_bytes() -> None:
    model = tiny_llama(1, hidden_size=256, num_heads=8, num_kv_heads=2, intermediate_size=512)
    source = RandomBlocks(model, "IQ4_NL")
    storage = storage_of("IQ4_NL", 256)
    assert (storage.layout, storage.via_f32) == ("q8", False)
    name = "layers.0.self_attn.q_proj.weight"
    kept = source_rows(source, name, storage).reshape(256, -1)
    np.testing.assert_array_equal(dequantize(kept, "Q8_0", 256), source.f32(name))
