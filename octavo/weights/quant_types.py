"""The element types of weight files: names, GGUF ids, block sizes. A table; it knows no file and
does no arithmetic on weights.

Source of the ids and block layouts: the GGUF specification in the ggml project's documentation.
"""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class QuantType:
    """One element type. `block_bytes` bytes hold `block_size` consecutive elements of a row."""

    name: str
    gguf_id: int | None  # None: of no GGUF file
    block_size: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row. `columns` must be a multiple of `block_size`."""
        return columns // self.block_size * self.block_bytes


QUANT_TYPES = {
    quant.name: quant
    for quant in (
        QuantType("F32", 0, 1, 4),
        QuantType("F16", 1, 1, 2),
        QuantType("Q4_0", 2, 32, 18),
        QuantType("Q4_1", 3, 32, 20),
        QuantType("Q5_0", 6, 32, 22),
        QuantType("Q5_1", 7, 32, 24),
        QuantType("Q8_0", 8, 32, 34),
        QuantType("Q2_K", 10, 256, 84),
        QuantType("Q3_K", 11, 256, 110),
        QuantType("Q4_K", 12, 256, 144),
        QuantType("Q5_K", 13, 256, 176),
        QuantType("Q6_K", 14, 256, 210),
        QuantType("IQ4_NL", 20, 32, 18),
        QuantType("BF16", 30, 1, 2),
        QuantType("MXFP4", 39, 32, 17),
        # What the integer formats of Hugging Face folders are read as (hf_quant.py): d and, in the
        # _MIN ones, m as f32; then 32 nibbles laid out as in Q4_0, or 32 bytes. w = d * (q - 8),
        # d * q + m, d * q (signed bytes), d * q + m (unsigned bytes).
        QuantType("INT4", None, 32, 20),
        QuantType("INT4_MIN", None, 32, 24),
        QuantType("INT8", None, 32, 36),
        QuantType("INT8_MIN", None, 32, 40),
    )
}

QUANT_TYPES_BY_ID = {
    quant.gguf_id: quant for quant in QUANT_TYPES.values() if quant.gguf_id is not None
}

# Types that exist in the format but that Octavo does not read: only for a message that says so.
OTHER_GGUF_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
