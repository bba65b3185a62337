"""Quantized Hugging Face folders on the native executor: near the reference, and equal among the
formats that hold the same integers."""

from pathlib import Path

import numpy as np
import pytest

from octavo.models.registry import record
from octavo.testing.toy_model import TinyModel, tiny_llama
from octavo.weights.model_file import open_model
from tests.backends.cpu.running import sequences
from tests.backends.cpu.test_executor import (
    INT8_TOLERANCE,
    TOLERANCE,
    cpu_logits,
    error_of,
    reference_logits,
)
from tests.parity.kernels import assert_same_bits
from tools.make_quantized import VARIANTS, write_quantized

# One format after another with the same integers and scales in it.
TWINS = {"gptq": "awq", "gptq-v2": "awq", "ct-w4a16-asym": "awq", "gptq-sym": "ct-w4a16",
         "ct-w8a16": "gptq-8bit"}  # fmt: skip


def both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the cpu and of the reference backend."""
    with open_model(folder) as file:
        graph = record(file.config, set(file.tensors))
        model = TinyModel(file.config, graph, {}, file)  # type: ignore[arg-type]
        (token_ids,) = sequences(1, [40], graph.vocab_size)
        return cpu_logits(model, token_ids), reference_logits(model, token_ids)


def test_every_format_is_near_the_reference_and_equals_its_twins(tmp_path: Path) -> None:
    found = {}
    with open_model(tiny_llama(1).save(tmp_path / "float")) as model:
        for name, variant in VARIANTS.items():
            write_quantized(model, tmp_path / name, variant, 32)
            found[name], expected = both(tmp_path / name)
            bound = TOLERANCE["F32"] if variant.shuffled else INT8_TOLERANCE
            assert error_of(found[name], expected) < bound, name
    for name, twin in TWINS.items():
        assert_same_bits(found[name], found[twin])


@pytest.mark.parametrize("name", ["awq", "ct-w8a8"])
def test_rounding_costs_what_its_bits_do(tmp_path: Path, name: str) -> None:
    """The reference's logits of the rounded model against those of the float one."""
    with open_model(tiny_llama(1).save(tmp_path / "float")) as model:
        write_quantized(model, tmp_path / name, VARIANTS[name], 32)
    error = error_of(both(tmp_path / name)[1], both(tmp_path / "float")[1])
    # Of random weights; a wrong layout gives more than 1.
    assert 1e-4 < error < (0.8 if name == "awq" else 0.08), error
