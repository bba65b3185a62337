"""Writes integer codes the way AWQ, GPTQ and compressed-tensors store them: for tools and tests.

The other side of octavo/weights/hf_quant.py and independent of it: plain loops after the formats'
own descriptions. Codes are unsigned, uint8 [out, in]; scales and zero points [out, groups].
"""

from typing import Any

import numpy as np

# One stored tensor: safetensors' dtype name, shape, values.
Stored = tuple[str, tuple[int, ...], np.ndarray]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def round_to_nearest(
    weight: np.ndarray, bits: int, group_size: int, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, float16 scales and zero points of a float32 matrix; group_size -1 is the whole row."""
    out, columns = weight.shape
    size = columns if group_size == -1 else group_size
    groups = weight.reshape(out, -1, size)
    most = (1 << bits) - 1
    if symmetric:
        middle = 1 << (bits - 1)
        scale = np.abs(groups).max(axis=2) / (middle - 0.5)
        zero = np.full(scale.shape, middle)
    else:
        low = np.minimum(groups.min(axis=2), 0)
        scale = (np.maximum(groups.max(axis=2), 0) - low) / most
        zero = np.clip(np.rint(-low / np.maximum(scale, 1e-7)), 0, most)
    scales = np.maximum(scale, 1e-6).astype(np.float16)
    steps = groups / scales.astype(np.float32)[:, :, None] + zero[:, :, None]
    codes = np.clip(np.rint(steps), 0, most).astype(np.uint8)
    return codes.reshape(out, columns), scales, zero.astype(np.int64)


def words(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """int32 words of the codes along the last axis, lowest bits first; a short end is padded.

    Position i of a word takes the code at `order[i]` of those that share it.
    """
    per_word = 32 // bits
    short = -codes.shape[-1] % per_word
    padding = [(0, 0)] * (codes.ndim - 1) + [(0, short)]
    runs = np.pad(codes.astype(np.uint32), padding).reshape(*codes.shape[:-1], -1, per_word)
    result = np.zeros(runs.shape[:-1], np.uint32)
    for i in range(per_word):
        result |= runs[..., i if order is None else order[i]] << np.uint32(i * bits)
    return result.view(np.int32)


def awq(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> dict[str, Stored]:
    """AutoAWQ's gemm version, 4 bits."""
    return {
        "qweight": stored(words(np.ascontiguousarray(codes.T), 4, AWQ_ORDER)),
        "qzeros": stored(words(np.ascontiguousarray(zeros.T), 4, AWQ_ORDER)),
        "scales": stored(scales.T),
    }


def gptq(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, *, bits: int, version: int = 1,
    g_idx: np.ndarray | None = None,
) -> dict[str, Stored]:  # fmt: skip
    """GPTQ; version 1 stores each zero point less one, the whole word at a time."""
    packed_zeros = words(np.ascontiguousarray(zeros.T), bits)
    if version == 1:
        one = np.uint32(0x11111111 if bits == 4 else 0x01010101)
        packed_zeros = (packed_zeros.view(np.uint32) - one).view(np.int32)
    columns = codes.shape[1]
    if g_idx is None:
        g_idx = np.arange(columns) // -(-columns // scales.shape[1])
    return {
        "qweight": stored(words(codes, bits).T),
        "qzeros": stored(packed_zeros),
        "scales": stored(scales.T),
        "g_idx": stored(g_idx.astype(np.int32)),
    }


def pack_quantized(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, *, bits: int
) -> dict[str, Stored]:
    """compressed-tensors' pack-quantized; zero points (None: symmetric) are packed along rows."""
    parts = {
        "weight_packed": stored(words(codes, bits)),
        "weight_scale": stored(scales),
        "weight_shape": stored(np.array(codes.shape, np.int64)),
    }
    if zeros is not None:
        parts["weight_zero_point"] = stored(words(np.ascontiguousarray(zeros.T), bits).T)
    return parts


def int_quantized(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None
) -> dict[str, Stored]:
    """compressed-tensors' int-quantized, 8 bits: signed bytes."""
    parts = {
        "weight": stored((codes.astype(np.int16) - 128).astype(np.int8)),
        "weight_scale": stored(scales),
    }
    if zeros is not None:
        parts["weight_zero_point"] = stored((zeros - 128).astype(np.int8))
    return parts


def stored(values: np.ndarray, dtype: str | None = None) -> Stored:
    """As `write_safetensors` takes it. uint16 arrays are bfloat16 bits."""
    names: dict[Any, str] = {
        "int32": "I32", "int64": "I64", "int8": "I8", "float16": "F16", "float32": "F32",
        "uint16": "BF16",
    }  # fmt: skip
    return dtype or names[values.dtype.name], values.shape, np.ascontiguousarray(values)


def compressed_config(
    bits: int, *, group_size: int | None, symmetric: bool = True, layout: str = "pack-quantized",
    strategy: str = "group", activations: bool = False, ignore: tuple[str, ...] = ("lm_head",),
) -> dict[str, Any]:  # fmt: skip
    """A quantization_config as llm-compressor writes it; activations: dynamic int8 a token."""
    common: dict[str, Any] = {
        "block_structure": None, "num_bits": 8, "observer_kwargs": {}, "symmetric": True,
        "type": "int", "actorder": None, "group_size": None,
    }  # fmt: skip
    weights = common | {
        "num_bits": bits, "group_size": group_size, "symmetric": symmetric, "strategy": strategy,
        "dynamic": False, "observer": "minmax",
    }  # fmt: skip
    dynamic = common | {"strategy": "token", "dynamic": True, "observer": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"], "weights": weights, "output_activations": None,
                "input_activations": dynamic if activations else None,
            },
        },
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
        "global_compression_ratio": None,
        "version": "0.12.2",
    }  # fmt: skip
