"""How each storage type of a model file is kept in native memory.

A table and one function; the repacking itself is native (csrc/pack.cc).
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from octavo.backends.seam import WeightSource
from octavo.weights.dequant import iq4_nl_as_q8_0

# Source types the native packer reads, with their numbers (csrc/linear.h, QuantType) and the panel
# layout they end up in. All of these are lossless.
_NATIVE = {
    "F32": (0, "f32"),
    "BF16": (1, "bf16"),
    "Q4_0": (2, "q4"),
    "Q4_1": (3, "q4+min"),
    "Q5_0": (4, "q5"),
    "Q5_1": (5, "q5+min"),
    "Q8_0": (6, "q8"),
    "Q4_K": (7, "q4+min, 8-bit scales"),
    "Q5_K": (8, "q5+min, 8-bit scales"),
    "INT4": (9, "q4, f32 scales"),
    "INT4_MIN": (10, "q4+min, f32 scales"),
    "INT8": (11, "q8, f32 scales"),
    "INT8_MIN": (12, "q8+min, f32 scales"),
    "Q2_K": (13, "q2+min, 8-bit scales"),
    "Q3_K": (14, "q3, 8-bit scales"),
    "Q6_K": (15, "q6, 8-bit scales"),
    "MXFP4": (16, "q5, f32 scales"),
    "F16": (17, "f16"),
}
# Exact in another block type: its levels are integers of eight bits.
_WIDENED = {"IQ4_NL": ("Q8_0", iq4_nl_as_q8_0)}


@dataclasses.dataclass(slots=True, frozen=True)
class Storage:
    """Native source type, and what people are told."""

    type_id: int
    layout: str
    via_f32: bool


def storage_of(quant: str, k: int) -> Storage:
    """How a tensor of type `quant` with `k` columns is stored."""
    native = _WIDENED[quant][0] if quant in _WIDENED else quant
    if native in ("BF16", "F16") and k % 2:
        native = "F32"  # their panels hold column pairs
    type_id, layout = _NATIVE[native]
    via_f32 = native != quant and quant not in _WIDENED
    return Storage(type_id=type_id, layout=layout, via_f32=via_f32)


def source_rows(weights: WeightSource, tensor: str, storage: Storage) -> npt.NDArray[np.uint8]:
    """The tensor's bytes as the native packer of that storage reads them."""
    quant = weights.quant_of(tensor)
    if quant in _WIDENED:
        return _WIDENED[quant][1](weights.raw(tensor)).reshape(-1)
    if not storage.via_f32:
        return np.ascontiguousarray(weights.raw(tensor)).reshape(-1)
    return np.ascontiguousarray(weights.f32(tensor), np.float32).reshape(-1).view(np.uint8)
