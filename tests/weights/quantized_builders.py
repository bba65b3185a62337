"""Tiny AWQ, GPTQ and compressed-tensors folders of known integers, and what their weights are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octavo.weights.safetensors import write_safetensors
from tests.weights.builders import hf_config, hf_tensors, save_folder
from tools import quantized_layouts as layouts

Parts = dict[str, layouts.Stored]
Config = dict[str, Any]


@dataclass(slots=True)
class Case:
    """One way to quantize. `scale_type` is a NumPy dtype, or "bf16"."""

    method: str
    bits: int = 4
    symmetric: bool = False
    group_size: int = 32  # -1: the whole row
    version: int = 1  # of GPTQ
    shuffled: bool = False
    scale_type: str = "float16"
    changes: Config = field(default_factory=dict)
    activations: bool = False

    def config(self) -> Config:
        size = self.group_size
        if self.method == "awq":
            made: Config = {"quant_method": "awq", "bits": 4, "group_size": size,
                            "zero_point": True, "version": "gemm"}  # fmt: skip
        elif self.method == "gptq":
            made = {"quant_method": "gptq", "bits": self.bits, "group_size": size,
                    "sym": self.symmetric, "desc_act": self.shuffled}  # fmt: skip
            if self.version == 2:
                made["checkpoint_format"] = "gptq_v2"
        else:
            made = layouts.compressed_config(
                self.bits, group_size=None if size == -1 else size, symmetric=self.symmetric,
                layout=self.method, strategy="channel" if size == -1 else "group",
                activations=self.activations,
            )  # fmt: skip
        return made | self.changes

    def matrix(self, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Parts, np.ndarray]:
        """The stored tensors of a random matrix, and its float64 weights."""
        (out, columns), most = shape, (1 << self.bits) - 1
        groups = 1 if self.group_size == -1 else -(-columns // self.group_size)
        codes = rng.integers(0, most + 1, shape).astype(np.uint8)
        scales, meaning = scales_of(rng.uniform(0.001, 0.02, (out, groups)), self.scale_type)
        zeros = rng.integers(0, most + 1, (out, groups))
        if self.symmetric:
            zeros[...] = 1 << (self.bits - 1)
        g_idx = np.arange(columns) // (columns if self.group_size == -1 else self.group_size)
        if self.shuffled:
            g_idx = rng.permutation(g_idx)
        weights = (codes.astype(np.float64) - zeros[:, g_idx]) * meaning[:, g_idx]
        if self.method == "awq":
            return layouts.awq(codes, scales, zeros), weights
        if self.method == "gptq":
            return layouts.gptq(codes, scales, zeros, bits=self.bits, version=self.version,
                                g_idx=g_idx), weights  # fmt: skip
        kept = None if self.symmetric else zeros
        if self.method == "int-quantized":
            return layouts.int_quantized(codes, scales, kept), weights
        parts = layouts.pack_quantized(codes, scales, kept, bits=self.bits)
        if self.shuffled:
            parts["weight_g_idx"] = layouts.stored(g_idx.astype(np.int32))
        return parts, weights


def scales_of(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Stored scales and the float64 numbers they are."""
    if kind == "bf16":
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    stored = values.astype(kind)
    return stored, stored.astype(np.float64)


def save_quantized(
    folder: Path,
    case: Case,
    *,
    config: Config | None = None,
    settings: Config | None = None,
    change: Callable[[Parts], None] | None = None,
    kinds: dict[str, bool] | None = None,
) -> dict[str, np.ndarray]:
    """Write the folder; the layers' matrices are quantized. `settings` replaces the case's
    quantization_config ({}: none at all), `change` edits the file's tensors before they are
    written. Returns the float64 weights by canonical name."""
    rng = np.random.default_rng(3)
    tensors: Parts = {}
    expected = {}
    for name, values in hf_tensors(**(kinds or {})).items():
        if ".layers." in name and values.ndim == 2:
            parts, weights = case.matrix(values.shape, rng)
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{part}": stored for part, stored in parts.items()}
            expected[name.removeprefix("model.")] = weights
        else:
            half = values.astype(np.float16)
            tensors[name] = layouts.stored(half)
            expected[name.removeprefix("model.")] = half.astype(np.float64)
    if change is not None:
        change(tensors)
    full = dict(config or hf_config())
    settings = case.config() if settings is None else settings
    if settings:
        full["quantization_config"] = settings
    save_folder(folder, full, {})
    write_safetensors(folder / "model.safetensors", tensors)
    return expected
