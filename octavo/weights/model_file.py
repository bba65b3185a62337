"""The one door to a model on disk: a GGUF file or a Hugging Face folder, opened and checked.

After `open_model` returns, every tensor the model needs is known to be there, in a readable type
and with the shape the configuration asks for. Bytes stay in the memory map until asked for.
It does not download (`hub`), repack for a kernel (`pack`) or build graphs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.weights.dequant import dequantize
from octavo.weights.gguf import read_gguf, shard_stem
from octavo.weights.gguf_config import ROPE_FREQS, config_from_gguf
from octavo.weights.hf_config import config_from_hf
from octavo.weights.hf_quant import QuantizedMatrix
from octavo.weights.hf_quant_folder import find_quantization, take_quantized
from octavo.weights.mapped_file import MappedFile, load_error
from octavo.weights.model_config import ModelConfig, RopeConfig
from octavo.weights.quant_types import QUANT_TYPES
from octavo.weights.safetensors import DTYPE_BYTES, parse_json, read_safetensors_folder
from octavo.weights.tensor_names import (
    canonical_from_gguf,
    canonical_from_hf,
    gguf_from_canonical,
    hf_from_canonical,
    required_tensors,
)

__all__ = ["ModelConfig", "ModelFile", "RopeConfig", "TensorInfo", "open_model"]

MAX_CONFIG_BYTES = 16 << 20
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Tensors of a layer that are no weights: tables that old checkpoints saved along.
_BUFFERS = (".rotary_emb.inv_freq", ".self_attn.bias", ".self_attn.masked_bias")
_GGUF_IGNORED = (".attn_rot_embd.weight",)


@dataclass(slots=True, frozen=True)
class TensorInfo:
    """One weight. `name` is canonical, `shape` row-major ([out, in] or [n]), `quant` a name of
    `quant_types.QUANT_TYPES`, `nbytes` its size in the file."""

    name: str
    shape: tuple[int, ...]
    quant: str
    nbytes: int


class ModelFile:
    """An opened model. Made by `open_model`; a context manager; safe to read from threads.

    `format` is "gguf" or "safetensors". `tensors` holds exactly what the model reads, in the order
    it reads it. `quantization` says in words how a folder is quantized, None where it is not or for
    GGUF. `metadata` is the GGUF key-value part (lazily decoded), empty for a folder.
    `tokenizer_dir` is the folder that holds tokenizer files, None for GGUF.
    """

    def __init__(
        self,
        *,
        path: Path,
        file_format: str,
        config: ModelConfig,
        tensors: dict[str, TensorInfo],
        places: dict[str, tuple[MappedFile, int]],
        files: tuple[MappedFile, ...],
        metadata: Mapping[str, Any],
        tokenizer_dir: Path | None,
        quantized: Mapping[str, QuantizedMatrix] | None = None,
        quantization: str | None = None,
    ) -> None:
        self.path = path
        self.format = file_format
        self.config = config
        self.name = _display_name(path)
        self.tensors = tensors
        self.metadata = metadata
        self.tokenizer_dir = tokenizer_dir
        self.quantization = quantization
        self._places = places
        self._quantized = quantized or {}
        self._files = files

    @property
    def nbytes(self) -> int:
        """Size of all weights as they are in the file."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def quant_of(self, name: str) -> str:
        """Storage type of a tensor: F32, F16, BF16, Q4_0, ..."""
        return self.tensors[name].quant

    def raw(self, name: str) -> np.ndarray:
        """uint8 [rows, bytes_per_row]; a vector is one row. A read-only view of the map, but for
        the quantized matrices of a folder: those are made at every call."""
        if name in self._quantized:
            return self._quantized[name].rows()
        info = self.tensors[name]
        file, offset = self._places[name]
        rows = info.shape[0] if len(info.shape) == 2 else 1
        return file.view(offset, info.nbytes).reshape(rows, -1)

    def f32(self, name: str) -> np.ndarray:
        """A new float32 array of the tensor's shape, dequantized."""
        info = self.tensors[name]
        return dequantize(self.raw(name), info.quant, info.shape[-1]).reshape(info.shape)

    def release(self, name: str) -> None:
        """Give the tensor's pages back to the system, for weights that were copied elsewhere."""
        if name in self._quantized:
            self._quantized[name].release()
            return
        file, offset = self._places[name]
        file.release(offset, self.tensors[name].nbytes)

    def close(self) -> None:
        """Unmap the files (those with live views when the views go). Idempotent."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "ModelFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_model(path: str | Path) -> ModelFile:
    """Open a GGUF file (the first shard of a split one) or a Hugging Face folder.

    Raises ModelNotFoundError when nothing is there, ModelLoadError for a broken or incomplete
    model, UnsupportedModelError for a sound one that Octavo does not run: each one line that names
    file, tensor or key, and the reason.
    """
    place = Path(os.path.abspath(os.path.expanduser(path)))
    try:
        if place.is_dir():
            return _open_folder(place)
        return _open_gguf(place)
    except OSError as err:
        raise load_error(place, f"cannot be read: {err.strerror or err}") from None


def _open_gguf(path: Path) -> ModelFile:
    if path.suffix == ".safetensors":
        raise load_error(path, "is one file of a model folder; give the folder's path")
    model = read_gguf(path)
    try:
        config = config_from_gguf(model)
        found: dict[str, TensorInfo] = {}
        places: dict[str, tuple[MappedFile, int]] = {}
        for name, tensor in model.tensors.items():
            canonical = canonical_from_gguf(name)
            if canonical is None:
                if name == ROPE_FREQS or name.endswith(_GGUF_IGNORED):
                    continue
                raise _surplus(path, name, config)
            found[canonical] = TensorInfo(canonical, tensor.shape, tensor.quant.name, tensor.nbytes)
            places[canonical] = (tensor.file, tensor.offset)
        tensors = _checked(path, config, found, gguf_from_canonical)
        for canonical in found.keys() - tensors.keys():
            raise _surplus(path, gguf_from_canonical(canonical), config)
    except BaseException:
        for file in model.files:
            file.close()
        raise
    return ModelFile(
        path=path, file_format="gguf", config=config, tensors=tensors, places=places,
        files=model.files, metadata=model.metadata, tokenizer_dir=None,
    )  # fmt: skip


def _open_folder(folder: Path) -> ModelFile:
    config_path = folder / "config.json"
    generation_path = folder / "generation_config.json"
    if not config_path.exists():
        inside = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; to open {inside[0]}, give its path" if inside else ""
        raise load_error(folder, f"config.json is missing{hint}")
    generation = _read_json(generation_path) if generation_path.exists() else {}
    settings = _read_json(config_path)
    config = config_from_hf(config_path, settings, generation, generation_path)
    quantization = find_quantization(folder, settings, _read_json)
    in_files, files = read_safetensors_folder(folder)
    try:
        quantized, in_files = take_quantized(folder, in_files, config, quantization)
        found: dict[str, TensorInfo] = {}
        places: dict[str, tuple[MappedFile, int]] = {}
        for name, tensor in in_files.items():
            canonical = canonical_from_hf(name)
            if canonical in found:
                raise load_error(folder, f"tensor {name}: is there twice, as model.{canonical} too")
            found[canonical] = TensorInfo(canonical, tensor.shape, tensor.dtype, tensor.nbytes)
            places[canonical] = (tensor.file, tensor.offset)
        for canonical, matrix in quantized.items():
            found[canonical] = TensorInfo(canonical, matrix.shape, matrix.quant, matrix.nbytes)
        tensors = _checked(folder, config, found, hf_from_canonical)
        for canonical in found.keys() - tensors.keys():
            # Heads and tables beside the decoder are nobody's loss; a layer's weight would be.
            empty = found[canonical].nbytes == 0
            if canonical.startswith("layers.") and not (empty or canonical.endswith(_BUFFERS)):
                raise _surplus(folder, hf_from_canonical(canonical), config)
        for canonical, info in tensors.items():
            if canonical not in quantized and info.quant not in DTYPE_BYTES:
                raise load_error(
                    folder,
                    f"tensor {hf_from_canonical(canonical)}: dtype {info.quant} is not supported "
                    f"(supported: {', '.join(DTYPE_BYTES)})",
                    UnsupportedModelError,
                )
    except BaseException:
        for file in files:
            file.close()
        raise
    has_tokenizer = any((folder / name).exists() for name in _TOKENIZER_FILES)
    return ModelFile(
        path=folder, file_format="safetensors", config=config, tensors=tensors, places=places,
        files=files, metadata={}, tokenizer_dir=folder if has_tokenizer else None,
        quantized=quantized, quantization=None if quantization is None else quantization.label,
    )  # fmt: skip


def _checked(
    path: Path, config: ModelConfig, found: dict[str, TensorInfo], file_name: Any
) -> dict[str, TensorInfo]:
    """The tensors the model reads, each present and of the right shape."""
    tensors: dict[str, TensorInfo] = {}
    for canonical, shape in required_tensors(config):
        info = found.get(canonical)
        if info is None:
            tied = canonical == "lm_head.weight"
            why = ", and tie_word_embeddings is false" if tied else ""
            raise load_error(path, f"tensor {file_name(canonical)}: is missing{why}")
        if info.shape != shape:
            raise load_error(
                path,
                f"tensor {file_name(canonical)}: has shape {list(info.shape)}, the model's "
                f"configuration asks for {list(shape)}",
            )
        tensors[canonical] = info
    return tensors


def _surplus(path: Path, name: str, config: ModelConfig) -> ModelLoadError:
    return load_error(
        path,
        f"tensor {name}: is not part of a {config.architecture} model of {config.num_layers} "
        "layers as Octavo builds it, and leaving it out would change the results",
        UnsupportedModelError,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise load_error(path, f"is larger than {MAX_CONFIG_BYTES} bytes")
    return parse_json(path, path.read_bytes(), "the file")


def _display_name(path: Path) -> str:
    """A short name to serve the model under: the file's stem or the folder's name."""
    if path.is_dir():
        repo = path.parent.parent.name
        if path.parent.name == "snapshots" and repo.startswith("models--"):
            return repo.removeprefix("models--").replace("--", "/")
        return path.name
    return shard_stem(path) or path.stem


assert DTYPE_BYTES.keys() <= QUANT_TYPES.keys()
