"""Weights quantized while they are loaded are those that `octavo quantize` writes."""

from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ConfigError, ModelLoadError
from octavo.weights.convert import TargetTypes, convert_model
from octavo.weights.load_quantize import LOAD_TYPES, QuantizedWeights, check_quantizable
from octavo.weights.model_file import open_model
from tests.weights.builders import gguf_metadata, gguf_tensors, save_gguf


@pytest.mark.parametrize("quantization", LOAD_TYPES)
@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_same_blocks_as_a_converted_file(
    tmp_path: Path, quantization: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.weights.native_quantize._ROWS", 7)  # several tasks a matrix
    metadata, tensors = gguf_metadata(), gguf_tensors(head=True)
    path = save_gguf(tmp_path / "a.gguf", metadata, tensors, source)
    types = TargetTypes(matrices=LOAD_TYPES[quantization], token_embedding="Q8_0", output="Q8_0")
    with open_model(path) as model:
        check_quantizable(model, quantization)
        convert_model(model, tmp_path / "b.gguf", types)
        view = QuantizedWeights(model, quantization)
        with open_model(tmp_path / "b.gguf") as made:
            with pytest.raises(ConfigError, match="quantized already"):
                check_quantizable(made, quantization)
            untouched = QuantizedWeights(made, quantization)
            for name in model.tensors:
                assert view.quant_of(name) == made.quant_of(name) == untouched.quant_of(name)
                assert np.array_equal(view.f32(name), made.f32(name)), name
                assert view.raw(name).tobytes() == made.raw(name).tobytes(), name
                assert untouched.raw(name).tobytes() == made.raw(name).tobytes()
                view.release(name)


def test_bad_values_are_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    tensors["blk.0.attn_q.weight"][1, 1] = np.nan
    path = save_gguf(tmp_path / "a.gguf", gguf_metadata(), tensors)
    with open_model(path) as model:
        view = QuantizedWeights(model, "int8")
        with pytest.raises(ModelLoadError, match=r"layers\.0\.self_attn\.q_proj.*not finite"):
            view.raw("layers.0.self_attn.q_proj.weight")
