"""A folder's quantized matrices: where its settings are, and which tensors belong together.

It opens them through hf_quant.py and leaves every other tensor as it is: modules that the settings
name as not quantized are those stored as floats.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octavo.weights.hf_quant import PARTS, QuantizedMatrix
from octavo.weights.hf_quant_config import Quantization, quantization_from_hf
from octavo.weights.mapped_file import load_error
from octavo.weights.model_config import ModelConfig
from octavo.weights.safetensors import DTYPE_BYTES, SafeTensor
from octavo.weights.tensor_names import canonical_from_hf, hf_from_canonical, required_tensors

logger = logging.getLogger(__name__)

# Keys of config.json; the second is compressed-tensors' of before 2024.
_KEYS = ("quantization_config", "compression_config")
# Files that GPTQ's and AWQ's own tools write beside a config.json that says nothing.
_FILES = ("quantize_config.json", "quant_config.json")


def find_quantization(
    folder: Path, config: Mapping[str, Any], read_json: Callable[[Path], dict[str, Any]]
) -> Quantization | None:
    """The settings in config.json's dictionary or in a file of their own; None for neither."""
    for key in _KEYS:
        if config.get(key) is not None:
            return quantization_from_hf(folder / "config.json", config[key], key=key)
    for name in _FILES:
        if (folder / name).exists():
            return quantization_from_hf(folder / name, read_json(folder / name))
    return None


def take_quantized(
    folder: Path,
    tensors: Mapping[str, SafeTensor],
    config: ModelConfig,
    quantization: Quantization | None,
) -> tuple[dict[str, QuantizedMatrix], dict[str, SafeTensor]]:
    """The quantized matrices by canonical name, and the tensors that are no part of one."""
    rest = dict(tensors)
    if quantization is None:
        _refuse_unexplained(folder, rest)
        return {}, rest
    names: dict[str, str] = {}
    for name in tensors:
        canonical = canonical_from_hf(name)
        if canonical in names:
            raise load_error(folder, f"tensor {name}: is there twice, as model.{canonical} too")
        names[canonical] = name
    matrices = {}
    for canonical, shape in required_tensors(config):
        if len(shape) != 2:
            continue
        parts = _parts_of(canonical, tensors, names, quantization.method)
        if not parts:
            continue
        module = hf_from_canonical(canonical).removesuffix(".weight")
        matrices[canonical] = QuantizedMatrix(
            module, parts, shape=(shape[0], shape[1]), quantization=quantization
        )
        for part in parts.values():
            del rest[part.name]
    _drop_zero_biases(rest, matrices, config)
    _report(folder, matrices)
    return matrices, rest


def _parts_of(
    canonical: str, tensors: Mapping[str, SafeTensor], names: Mapping[str, str], method: str
) -> dict[str, SafeTensor]:
    """The tensors of a quantized matrix by what follows the module's name; none for a float one."""
    module = canonical.removesuffix("weight")
    parts = {
        part: tensors[names[module + part]] for part in PARTS[method] if module + part in names
    }
    weight = tensors[names[canonical]] if canonical in names else None
    if weight is None:
        return parts
    if weight.dtype in DTYPE_BYTES:
        if PARTS[method][0] in parts:
            raise load_error(
                weight.file.path,
                f"tensor {weight.name}: is there twice, as {parts[PARTS[method][0]].name} too",
            )
        return {}
    return {"weight": weight} | parts if method == "compressed-tensors" else {}


def _refuse_unexplained(folder: Path, tensors: Mapping[str, SafeTensor]) -> None:
    kinds = tuple(f".{parts[0]}" for parts in PARTS.values())
    for name in tensors:
        if name.endswith(kinds):
            raise load_error(
                folder,
                f"tensor {name}: is quantized, but config.json has no quantization_config and "
                f"there is no {' or '.join(_FILES)}",
            )


def _drop_zero_biases(
    rest: dict[str, SafeTensor], matrices: Mapping[str, QuantizedMatrix], config: ModelConfig
) -> None:
    """Some GPTQ tools save a bias of zeros for every matrix; a bias that adds nothing may go."""
    needed = {name for name, _ in required_tensors(config)}
    for name, tensor in list(rest.items()):
        canonical = canonical_from_hf(name)
        module = canonical.removesuffix(".bias")
        if module == canonical or f"{module}.weight" not in matrices or canonical in needed:
            continue
        if not np.any(tensor.file.view(tensor.offset, tensor.nbytes)):
            del rest[name]


def _report(folder: Path, matrices: Mapping[str, QuantizedMatrix]) -> None:
    wide = [name for name, matrix in matrices.items() if matrix.is_dequantized]
    if wide:
        logger.warning(
            "%s: %d of %d quantized matrices are dequantized to float32, exactly, as their groups "
            "are not whole blocks of 32 columns (desc_act, or a group size of less); "
            "--quantization int8 keeps them small",
            folder, len(wide), len(matrices),
        )  # fmt: skip
