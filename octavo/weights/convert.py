"""Writes an opened model as a GGUF file with its matrices in another element type.

Knows how a Hugging Face model's settings and rows are put in GGUF. It knows no tokenizer: a
folder's vocabulary comes in as ready `tokenizer.*` keys (tokenizer/gguf_export.py).
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ConfigError, OctavoError
from octavo.weights.gguf import read_gguf
from octavo.weights.gguf_config import ROPE_FREQS, ROPE_STYLES
from octavo.weights.gguf_write import TensorToWrite, encode_array, encode_value, write_gguf
from octavo.weights.mapped_file import load_error
from octavo.weights.model_file import ModelFile
from octavo.weights.native_quantize import quantize_matrix
from octavo.weights.quantize import storable_type
from octavo.weights.tensor_names import gguf_from_canonical

# general.file_type of the GGUF specification, for a file whose matrices are mostly of the type.
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 14,
    "Q5_K": 16, "Q6_K": 18, "BF16": 32,
}  # fmt: skip
_QUANTIZATION_VERSION = 2  # general.quantization_version: the block layouts in use since 2023
_I32 = 5  # GGUF value type
_F16_MAX = 65504.0  # block scales are f16: beyond this a value could become infinite

# (tensors written, tensors in all, name of the next one)
Progress = Callable[[int, int, str], None]


@dataclass(slots=True, frozen=True, kw_only=True)
class TargetTypes:
    """Element types to write. The embeddings and the output matrix have their own when given."""

    matrices: str
    token_embedding: str | None = None
    output: str | None = None

    def of(self, name: str, shape: Sequence[int]) -> str:
        """The type of a tensor: vectors stay F32, rows that are no whole blocks go wider."""
        if len(shape) != 2:
            return "F32"
        special = {"embed_tokens.weight": self.token_embedding, "lm_head.weight": self.output}
        return storable_type(special.get(name) or self.matrices, shape[-1])


def convert_model(
    model: ModelFile,
    path: Path,
    types: TargetTypes,
    *,
    vocabulary: Mapping[str, Any] | None = None,
    rope_divisors: Sequence[float] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write `model` to the GGUF file `path`, which appears whole or not at all.

    A GGUF model's metadata is copied; a folder's is made from its configuration, `vocabulary` (the
    `tokenizer.*` keys) and `rope_divisors` (dim / 2 divisors of the frequencies, for scalings that
    GGUF has no key for). Raises ConfigError when something is at `path` already, ModelLoadError
    for weights that are not finite, OctavoError where the file cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file to write")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: is there already; --force replaces it")
    metadata = metadata_of(model, types, vocabulary)
    tensors = tensors_of(model, types, rope_divisors)
    if progress is not None:
        tensors = [_reporting(tensors, index, progress) for index in range(len(tensors))]
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_gguf(partial, metadata=metadata, tensors=tensors)
        os.replace(partial, path)
    except OSError as error:
        raise OctavoError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def metadata_of(
    model: ModelFile, types: TargetTypes, vocabulary: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The key-value part of the file, as `write_gguf` takes it."""
    if model.format == "gguf":
        source = read_gguf(model.path)
        values: dict[str, Any] = {
            key: source.metadata.encoded(key)
            for key in source.metadata
            if not key.startswith("split.") and key != "general.alignment"
        }
    else:
        values = _settings(model) | dict(vocabulary or {})
        if "tokenizer.ggml.token_type" in values:
            kinds = values["tokenizer.ggml.token_type"]
            values["tokenizer.ggml.token_type"] = encode_array(kinds, _I32)
        values["general.quantization_version"] = _QUANTIZATION_VERSION
    return values | {"general.file_type": encode_value(FILE_TYPES[types.matrices])}


def tensors_of(
    model: ModelFile, types: TargetTypes, rope_divisors: Sequence[float] | None = None
) -> list[TensorToWrite]:
    """Every tensor of the model, to be made when it is its turn."""
    found = []
    for name, info in model.tensors.items():
        chosen = types.of(name, info.shape)
        found.append(
            TensorToWrite(gguf_from_canonical(name), info.shape, chosen, _data(model, name, chosen))
        )
    if model.format == "gguf":
        # As the file has them: the configuration's may hold a linear factor that metadata repeats.
        own = read_gguf(model.path).tensors.get(ROPE_FREQS)
        divisors = None if own is None else own.file.view(own.offset, own.nbytes).view("<f4").copy()
    else:
        divisors = None if rope_divisors is None else np.array(rope_divisors, np.float32)
    if divisors is not None:
        found.append(TensorToWrite(ROPE_FREQS, divisors.shape, "F32", lambda: divisors))
    return found


def gguf_architecture(model: ModelFile) -> str:
    """The name of a model's architecture in GGUF: Mistral's is a llama file."""
    architecture = model.config.architecture
    return "llama" if architecture == "mistral" else architecture


def interleaved_rows(model: ModelFile, name: str, values: np.ndarray) -> np.ndarray:
    """Q and K rows with a rotated pair's components side by side, where GGUF keeps them so.

    Component i of the first half of a head goes to row 2i, of the second half to row 2i + 1. Other
    tensors, and models whose files are the same in both formats, come back as they are.
    """
    config = model.config
    turned = ROPE_STYLES[gguf_architecture(model)] == "interleaved" and config.rope.style == "neox"
    part = name.rpartition(".")[0]
    if not turned or not part.endswith((".q_proj", ".k_proj")):
        return values
    halves = values.reshape(-1, 2, config.head_dim // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def require_peak(peak: float, quant: str, *, path: Path, name: str) -> None:
    """Raises ModelLoadError where the largest magnitude is not finite or too large for a type."""
    most = float(np.finfo(np.float32).max) if quant in ("F32", "BF16") else _F16_MAX
    if not np.isfinite(peak):
        raise load_error(path, f"tensor {name}: has values that are not finite")
    if peak > most:
        raise load_error(
            path, f"tensor {name}: has values up to {peak:.3g}, more than {quant} can hold"
        )


def _settings(model: ModelFile) -> dict[str, Any]:
    """The configuration of a folder's model as GGUF keys."""
    config, rope = model.config, model.config.rope
    architecture = gguf_architecture(model)
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": rope.dim,
        "rope.freq_base": float(rope.theta),
    }
    if config.sliding_window is not None:
        values["attention.sliding_window"] = config.sliding_window
    if rope.scaling == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope.factor)}
    return {
        "general.architecture": architecture,
        "general.name": model.name,
        **{f"{architecture}.{key}": value for key, value in values.items()},
    }


def _data(model: ModelFile, name: str, quant: str) -> Callable[[], np.ndarray]:
    def make() -> np.ndarray:
        info = model.tensors[name]
        if info.quant == quant:
            rows = model.raw(name)
            if len(info.shape) == 1:  # a vector is one row of bytes, its elements are the rows here
                rows = rows.reshape(info.shape[0], -1)
            return interleaved_rows(model, name, rows)
        values = interleaved_rows(model, name, model.f32(name))
        raw = values.reshape(-1, info.shape[-1]).view(np.uint8)
        blocks, peak = quantize_matrix(raw, "F32", quant, info.shape[-1])
        require_peak(peak, quant, path=model.path, name=name)
        return blocks

    return make


def _reporting(tensors: Sequence[TensorToWrite], index: int, progress: Progress) -> TensorToWrite:
    tensor = tensors[index]

    def make() -> np.ndarray:
        progress(index, len(tensors), tensor.name)
        return tensor.data()

    return TensorToWrite(tensor.name, tensor.shape, tensor.quant, make)

