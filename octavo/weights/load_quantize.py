"""Weights quantized while they are loaded: a model file's float matrices as if they were Q8_0/Q4_1.

A view of an opened model with the methods a backend reads weights by. The blocks are the same as
`octavo quantize` writes, so results equal those of such a file. It keeps nothing.
"""

import numpy as np

from octavo.errors import ConfigError
from octavo.weights.convert import require_peak
from octavo.weights.dequant import dequantize
from octavo.weights.model_file import ModelFile
from octavo.weights.native_quantize import quantize_matrix
from octavo.weights.quant_types import QUANT_TYPES

# int8 and int4 with a scale for each 32 columns, as activations have. Four bits with an offset lose
# a quarter less of the values' energy than without, for a ninth more bytes (docs/LOG.md).
LOAD_TYPES = {"int8": "Q8_0", "int4": "Q4_1"}
# The embeddings and the output matrix are no place for four bits: every token passes through them.
_WIDE = {"embed_tokens.weight": "Q8_0", "lm_head.weight": "Q8_0"}
_FLOAT = ("F32", "F16", "BF16")


class QuantizedWeights:
    """The WeightSource of `model` under `quantization` ("int8" or "int4").

    Raises ModelLoadError from `raw` and `f32` where a value is not finite or too large for f16.
    """

    def __init__(self, model: ModelFile, quantization: str) -> None:
        self._model = model
        self._target = LOAD_TYPES[quantization]

    def is_changed(self, name: str) -> bool:
        """Whether the tensor is quantized here: a float matrix of whole blocks."""
        info = self._model.tensors[name]
        return (
            len(info.shape) == 2
            and info.quant in _FLOAT
            and info.shape[1] % QUANT_TYPES[self._target].block_size == 0
        )

    def quant_of(self, name: str) -> str:
        """The storage type a backend sees."""
        return _WIDE.get(name, self._target) if self.is_changed(name) else (
            self._model.quant_of(name))

    def raw(self, name: str) -> np.ndarray:
        """uint8 [rows, bytes_per_row] in that type; made anew at every call where changed."""
        if not self.is_changed(name):
            return self._model.raw(name)
        quant, kind = self.quant_of(name), self._model.quant_of(name)
        columns = self._model.tensors[name].shape[1]
        result, peak = quantize_matrix(self._model.raw(name), kind, quant, columns)
        require_peak(peak, quant, path=self._model.path, name=name)
        return result

    def f32(self, name: str) -> np.ndarray:
        """float32 of what `raw` holds."""
        if not self.is_changed(name):
            return self._model.f32(name)
        return dequantize(self.raw(name), self.quant_of(name), self._model.tensors[name].shape[1])

    def release(self, name: str) -> None:
        """See ModelFile."""
        self._model.release(name)


def check_quantizable(model: ModelFile, quantization: str) -> None:
    """Raises ConfigError unless a matrix of the file is in a float type."""
    kinds = sorted({t.quant for t in model.tensors.values() if len(t.shape) == 2})
    if not any(kind in _FLOAT for kind in kinds):
        raise ConfigError(
            f"quantization is {quantization!r}: the file is quantized already "
            f"({', '.join(kinds)}); leave it out",
            param="quantization",
        )
