"""Quantize a model (through float32, to the nearest) into AWQ, GPTQ and compressed-tensors folders.

    python -m tools.make_quantized FOLDER OUTDIR [--variants awq gptq ...] [--group-size 64]

For tests and comparisons: FOLDER is a Hugging Face folder with float weights; every matrix of a
layer is quantized, the embeddings and the output matrix are not. Variants of equal bits and
symmetry hold the same integers, so they must give the same results.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import OctavoError
from octavo.weights.model_file import ModelFile, open_model
from octavo.weights.safetensors import write_safetensors
from octavo.weights.tensor_names import hf_from_canonical
from tools import quantized_layouts as layouts

_COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
_Parts = dict[str, layouts.Stored]


@dataclass(slots=True, frozen=True)
class Variant:
    """How matrices are rounded, stored and announced in config.json."""

    bits: int
    symmetric: bool
    store: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], _Parts]
    config: Callable[[int], dict[str, Any]]
    whole_row: bool = False
    shuffled: bool = False  # a group's columns lie anywhere, as desc_act leaves them


def _gptq(bits: int, symmetric: bool, version: int = 1, shuffled: bool = False) -> Variant:
    def store(
        codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, g_idx: np.ndarray | None
    ) -> _Parts:
        return layouts.gptq(codes, scales, zeros, bits=bits, version=version, g_idx=g_idx)

    def config(group_size: int) -> dict[str, Any]:
        return {
            "quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": symmetric,
            "desc_act": shuffled, "damp_percent": 0.01, "true_sequential": True,
            "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
        }  # fmt: skip

    return Variant(bits, symmetric, store, config, shuffled=shuffled)


def _packed(bits: int, symmetric: bool) -> Variant:
    return Variant(
        bits, symmetric,
        lambda c, s, z, _: layouts.pack_quantized(c, s, None if symmetric else z, bits=bits),
        lambda size: layouts.compressed_config(bits, group_size=size, symmetric=symmetric),
    )  # fmt: skip


def _awq_config(group_size: int) -> dict[str, Any]:
    return {
        "quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None,
    }  # fmt: skip


def _w8a8_config(group_size: int) -> dict[str, Any]:
    return layouts.compressed_config(
        8, group_size=None, layout="int-quantized", strategy="channel", activations=True
    )


VARIANTS = {
    "awq": Variant(4, False, lambda c, s, z, _: layouts.awq(c, s, z), _awq_config),
    "gptq": _gptq(4, False),
    "gptq-v2": _gptq(4, False, version=2),
    "gptq-sym": _gptq(4, True),
    "gptq-8bit": _gptq(8, False),
    "gptq-desc-act": _gptq(4, False, shuffled=True),
    "ct-w4a16": _packed(4, True),
    "ct-w4a16-asym": _packed(4, False),
    "ct-w8a16": _packed(8, False),
    "ct-w8a8": Variant(
        8, True, lambda c, s, z, _: layouts.int_quantized(c, s, None), _w8a8_config, whole_row=True
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a Hugging Face folder with float weights")
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--group-size", type=int, default=64)
    options = parser.parse_args(arguments)
    try:
        with open_model(options.folder) as model:
            if model.format != "safetensors" or model.quantization is not None:
                raise OctavoError(f"{model.path}: is no Hugging Face folder with float weights")
            for name in options.variants:
                start = time.monotonic()
                out = options.outdir / f"{model.name}-{name}"
                write_quantized(model, out, VARIANTS[name], options.group_size)
                print(f"{out}  ({time.monotonic() - start:.1f} s)")
    except OctavoError as err:
        print(f"make_quantized: {err}", file=sys.stderr)
        return 1
    return 0


def write_quantized(model: ModelFile, out: Path, variant: Variant, group_size: int) -> None:
    """Write one variant of an opened float folder to the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    size = -1 if variant.whole_row else group_size
    tensors: dict[str, layouts.Stored] = {}
    for name, info in model.tensors.items():
        if name.startswith("layers.") and len(info.shape) == 2:
            module = hf_from_canonical(name).removesuffix(".weight")
            for part, stored in _quantized(model.f32(name), variant, size).items():
                tensors[f"{module}.{part}"] = stored
        else:
            tensors[hf_from_canonical(name)] = (info.quant, info.shape, model.raw(name))
    write_safetensors(out / "model.safetensors", tensors)
    config = json.loads((model.path / "config.json").read_bytes())
    config["quantization_config"] = variant.config(group_size)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for extra in _COPIED:
        if (model.path / extra).exists():
            shutil.copy(model.path / extra, out / extra)


def _quantized(weight: np.ndarray, variant: Variant, group_size: int) -> _Parts:
    columns = weight.shape[1]
    order = np.arange(columns)
    if variant.shuffled:
        order = np.random.default_rng(0).permutation(columns)
    rounded, scales, zeros = layouts.round_to_nearest(
        weight[:, order], variant.bits, group_size, symmetric=variant.symmetric
    )
    codes, g_idx = np.empty_like(rounded), np.empty_like(order)
    codes[:, order] = rounded
    g_idx[order] = np.arange(columns) // (columns // scales.shape[1])
    return variant.store(codes, scales, zeros, g_idx if variant.shuffled else None)


if __name__ == "__main__":
    sys.exit(main())
