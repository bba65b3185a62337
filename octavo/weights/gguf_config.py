"""From GGUF metadata to ModelConfig: which keys mean what, and which settings are refused.

Reads keys only; `model_file` checks the tensors against the result.
Source of the key names: the GGUF specification in the ggml project's documentation.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.weights.config_values import ConfigValues, check_heads
from octavo.weights.gguf import GgufModel
from octavo.weights.mapped_file import load_error
from octavo.weights.model_config import ModelConfig, RopeConfig

# The converter permutes the Q and K rows of these so that a pair of components lies together.
ROPE_STYLES = {"llama": "interleaved", "qwen2": "neox", "qwen3": "neox"}
ROPE_FREQS = "rope_freqs.weight"
DEFAULT_THETA = 10000.0

# Settings that change the arithmetic and that no model here implements: key -> neutral values.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0, 0.0),
    "attention.max_alibi_bias": (0, 0.0),
    "attention.scale": (0, 0.0),
    "attn_logit_softcapping": (0, 0.0),
    "final_logit_softcapping": (0, 0.0),
    "logit_scale": (0, 0.0, 1, 1.0),
    "embedding_scale": (0, 0.0, 1, 1.0),
    "residual_scale": (0, 0.0, 1, 1.0),
    "attention.temperature_scale": (0, 0.0),
    "attention.sliding_window_pattern": (),
    "rope.dimension_sections": (),
}

# Control tokens that end a turn or a text, by the spelling the model families share. A GGUF file
# names one end-of-sequence id; chat models also stop at others.
_END_TOKENS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"}
)
_CONTROL = 3  # token_type of a control token
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_from_gguf(model: GgufModel) -> ModelConfig:
    """ModelConfig of an opened GGUF model.

    Raises ModelLoadError naming the missing or bad key, UnsupportedModelError naming key and value.
    """
    general = ConfigValues(model.path, model.metadata)
    architecture = general.text("general.architecture")
    if architecture not in ROPE_STYLES:
        raise general.unsupported(
            "general.architecture", architecture, f"supported: {', '.join(ROPE_STYLES)}"
        )
    values = ConfigValues(
        model.path, _Prefixed(model.metadata, f"{architecture}."), prefix=f"{architecture}."
    )
    for key, neutral in _REFUSED.items():
        if values.get(key) is not None and values.get(key) not in neutral:
            raise values.unsupported(key, values.get(key), "no model here has this setting")
    num_layers = values.size("block_count")
    hidden_size = values.size("embedding_length")
    num_heads = values.size("attention.head_count")
    if isinstance(per_layer := values.get("attention.head_count_kv"), list):
        raise values.unsupported("attention.head_count_kv", per_layer, "one value for all layers")
    num_kv_heads = values.size("attention.head_count_kv", num_heads)
    check_heads(
        values,
        heads=("attention.head_count", num_heads),
        kv_heads=("attention.head_count_kv", num_kv_heads),
    )
    head_dim = _head_dim(values, hidden_size, num_heads)
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(model, values),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=values.size("feed_forward_length"),
        max_position_embeddings=values.size("context_length"),
        rms_norm_eps=values.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(model, values, head_dim, ROPE_STYLES[architecture]),
        sliding_window=_sliding_window(values),
        tie_word_embeddings="output.weight" not in model.tensors,
        attention_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in model.tensors,
        qk_norm=architecture == "qwen3",
        hidden_act="silu",
        eos_token_ids=_end_tokens(model, general),
        bos_token_id=next(iter(general.token_ids("tokenizer.ggml.bos_token_id")), None),
    )


class _Prefixed(Mapping[str, Any]):
    """The keys of one architecture, without its prefix."""

    def __init__(self, values: Mapping[str, Any], prefix: str) -> None:
        self._values = values
        self._prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self._values[self._prefix + key]

    def __iter__(self) -> Any:
        cut = len(self._prefix)
        return (key[cut:] for key in self._values if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _head_dim(values: ConfigValues, hidden_size: int, num_heads: int) -> int:
    head_dim = values.size("attention.key_length", None)
    if head_dim is None:
        if hidden_size % num_heads:
            raise values.error(
                "attention.head_count", f"is {num_heads}, which does not divide {hidden_size}"
            )
        head_dim = hidden_size // num_heads
    value_length = values.size("attention.value_length", head_dim)
    if value_length != head_dim:
        raise values.unsupported(
            "attention.value_length", value_length, f"it must equal key_length, {head_dim}"
        )
    return int(head_dim)


def _sliding_window(values: ConfigValues) -> int | None:
    key = "attention.sliding_window"
    return None if values.get(key) == 0 else values.size(key, None)


def _vocab_size(model: GgufModel, values: ConfigValues) -> int:
    """Stated, else counted: the vocabulary's length, else the embedding's rows."""
    tokens_key = "tokenizer.ggml.tokens"
    count = model.metadata.array_length(tokens_key) if tokens_key in model.metadata else None
    embedding = model.tensors.get("token_embd.weight")
    rows = embedding.shape[0] if embedding is not None else None
    size = int(values.size("vocab_size", count or rows or 1))
    if count is not None and count > size:
        raise load_error(
            model.path, f"key {tokens_key}: has {count} tokens, more than vocab_size {size}"
        )
    return size


def _rope(model: GgufModel, values: ConfigValues, head_dim: int, style: str) -> RopeConfig:
    dim = values.size("rope.dimension_count", head_dim)
    if dim != head_dim or dim % 2:
        raise values.unsupported(
            "rope.dimension_count", dim, f"all of head_dim, {head_dim}, must rotate, in pairs"
        )
    theta = values.number("rope.freq_base", DEFAULT_THETA)
    scaling = values.text("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise values.unsupported("rope.scaling.type", scaling, "supported: none, linear")
    # "rope.scale_linear" is the same setting in files older than "rope.scaling.*".
    factor = 1.0
    if scaling == "linear":
        factor = values.number("rope.scaling.factor")
    elif values.get("rope.scaling.type") is None:
        factor = values.number("rope.scale_linear", 1.0)
    freqs = _rope_freqs(model, dim)
    if freqs is not None and factor != 1.0:
        # Both divide the frequencies.
        freqs = tuple(divisor * factor for divisor in freqs)
    linear = factor != 1.0 and freqs is None
    return RopeConfig(
        theta=theta,
        dim=dim,
        style=style,
        scaling="linear" if linear else None,
        factor=factor if linear else 1.0,
        freqs=freqs,
    )


def _rope_freqs(model: GgufModel, dim: int) -> tuple[float, ...] | None:
    """The frequency divisors some files carry as a tensor (Llama 3's scaling)."""
    tensor = model.tensors.get(ROPE_FREQS)
    if tensor is None:
        return None
    if tensor.shape != (dim // 2,) or tensor.quant.name != "F32":
        raise load_error(
            model.path,
            f"tensor {ROPE_FREQS}: is {tensor.quant.name} {list(tensor.shape)}, "
            f"expected F32 {[dim // 2]}",
        )
    divisors = tensor.file.view(tensor.offset, tensor.nbytes).view("<f4")
    if not (np.isfinite(divisors).all() and (divisors > 0).all()):
        raise load_error(model.path, f"tensor {ROPE_FREQS}: has values that are not positive")
    return tuple(divisors.tolist())


def _end_tokens(model: GgufModel, general: ConfigValues) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for key in _END_KEYS:
        ids.update(dict.fromkeys(general.token_ids(f"tokenizer.ggml.{key}")))
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    types = model.metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=False)):
            if kind == _CONTROL and isinstance(token, str) and token in _END_TOKENS:
                ids.setdefault(token_id)
    return tuple(ids)
