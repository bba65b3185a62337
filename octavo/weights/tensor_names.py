"""The tensors a model needs: canonical names, shapes, and the names files use for them.

Canonical names are Hugging Face's without the leading "model.". No files, no values.
"""

import re
from collections.abc import Iterator

from octavo.weights.model_config import ModelConfig

_GGUF_TOP = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_TOP_BACK = {canonical: name for name, canonical in _GGUF_TOP.items()}
_GGUF_LAYER_BACK = {canonical: name for name, canonical in _GGUF_LAYER.items()}
_GGUF_BLOCK = re.compile(r"^blk\.(0|[1-9]\d{0,5})\.(.+)\.(weight|bias)$", re.ASCII)
_CANONICAL_LAYER = re.compile(r"^layers\.(0|[1-9]\d{0,5})\.(.+)\.(weight|bias)$", re.ASCII)


def canonical_from_gguf(name: str) -> str | None:
    """The canonical name of a GGUF tensor, None for one no model here has."""
    match = _GGUF_BLOCK.match(name)
    if match is None:
        return _GGUF_TOP.get(name)
    part = _GGUF_LAYER.get(match[2])
    return None if part is None else f"layers.{match[1]}.{part}.{match[3]}"


def gguf_from_canonical(name: str) -> str:
    """The GGUF name of a canonical one."""
    match = _CANONICAL_LAYER.match(name)
    if match is None:
        return _GGUF_TOP_BACK[name]
    return f"blk.{match[1]}.{_GGUF_LAYER_BACK[match[2]]}.{match[3]}"


def canonical_from_hf(name: str) -> str:
    """The canonical name of a Hugging Face tensor (any name: the prefix goes, nothing else)."""
    return name.removeprefix("model.")


def hf_from_canonical(name: str) -> str:
    """The Hugging Face name of a canonical one."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def required_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Canonical name and shape ([out, in] or [n]) of all the model reads, by layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.num_heads * config.head_dim
    key_value = config.num_kv_heads * config.head_dim
    yield "embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        at = f"layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        for part, rows in (("q", query), ("k", key_value), ("v", key_value)):
            yield f"{at}.self_attn.{part}_proj.weight", (rows, hidden)
            if config.attention_bias:
                yield f"{at}.self_attn.{part}_proj.bias", (rows,)
        if config.qk_norm:
            yield f"{at}.self_attn.q_norm.weight", (config.head_dim,)
            yield f"{at}.self_attn.k_norm.weight", (config.head_dim,)
        yield f"{at}.self_attn.o_proj.weight", (hidden, query)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{at}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{at}.mlp.up_proj.weight", (inner, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
    yield "norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)
