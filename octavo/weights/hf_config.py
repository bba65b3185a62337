"""From a Hugging Face config.json to ModelConfig: which keys mean what, and what is refused.

Reads dictionaries only. An absent key takes the value the transformers library documents as its
default; both spellings of the rotary settings are read (`rope_theta` + `rope_scaling`, and
`rope_parameters` of newer files).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.weights.config_values import ConfigValues, check_heads
from octavo.weights.model_config import ModelConfig, RopeConfig

DEFAULT_THETA = 10000.0
GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(slots=True, frozen=True)
class _Family:
    """What an architecture fixes outside its config.json, and its defaults for absent keys."""

    class_name: str
    num_kv_heads: int | None  # None: as many as query heads
    head_dim: int | None  # None: hidden_size / num_heads
    max_position_embeddings: int
    qkv_bias: bool | None  # None: the key attention_bias says
    qk_norm: bool = False


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", None, None, 2048, None),
    "mistral": _Family("MistralForCausalLM", 8, None, 131072, False),
    "qwen2": _Family("Qwen2ForCausalLM", 32, None, 32768, True),
    "qwen3": _Family("Qwen3ForCausalLM", 32, 128, 32768, None, qk_norm=True),
}
DEFAULT_WINDOW = 4096  # where a config.json lacks the key and windows are on; null means none

# Settings that change the arithmetic and that no model here implements: key -> neutral values.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "mlp_bias": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "partial_rotary_factor": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1, 1.0),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}


def config_from_hf(
    path: Path, config: Mapping[str, Any], generation: Mapping[str, Any], generation_path: Path
) -> ModelConfig:
    """ModelConfig of config.json's dictionary and generation_config.json's (empty when absent).

    Raises ModelLoadError naming the missing or bad key, UnsupportedModelError naming key and value.
    """
    values = ConfigValues(path, config)
    architecture = _architecture(values)
    family = _FAMILIES[architecture]
    for key, neutral in _REFUSED.items():
        if values.get(key) is not None and values.get(key) not in neutral:
            raise values.unsupported(key, values.get(key), "no model here has this setting")
    if values.text("hidden_act", "silu") != "silu":
        raise values.unsupported("hidden_act", values.get("hidden_act"), "supported: silu")
    hidden_size = values.size("hidden_size")
    num_heads = values.size("num_attention_heads")
    num_kv_heads = values.size("num_key_value_heads", family.num_kv_heads or num_heads)
    check_heads(
        values,
        heads=("num_attention_heads", num_heads),
        kv_heads=("num_key_value_heads", num_kv_heads),
    )
    num_layers = values.size("num_hidden_layers")
    max_position = values.size("max_position_embeddings", family.max_position_embeddings)
    head_dim = _head_dim(values, family, hidden_size, num_heads)
    bias = values.flag("attention_bias", False) if family.qkv_bias is None else family.qkv_bias
    hints = ConfigValues(generation_path, generation)
    ends = (*hints.token_ids("eos_token_id"), *values.token_ids("eos_token_id"))
    return ModelConfig(
        architecture=architecture,
        vocab_size=values.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=values.size("intermediate_size"),
        max_position_embeddings=max_position,
        rms_norm_eps=values.number("rms_norm_eps", 1e-6),
        rope=_rope(values, head_dim, max_position),
        sliding_window=_sliding_window(values, architecture, num_layers),
        tie_word_embeddings=values.flag("tie_word_embeddings", False),
        attention_bias=bias,
        qk_norm=family.qk_norm,
        hidden_act="silu",
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_id=next(iter(values.token_ids("bos_token_id")), None),
        generation_defaults=_generation_defaults(hints),
    )


def _architecture(values: ConfigValues) -> str:
    names = values.get("architectures")
    model_type = values.text("model_type", None)
    supported = "supported: " + ", ".join(family.class_name for family in _FAMILIES.values())
    if names is not None:
        if not isinstance(names, list) or not names:
            raise values.error("architectures", f"is {names!r}, expected a list of names")
        by_class = {family.class_name: key for key, family in _FAMILIES.items()}
        found = by_class.get(names[0]) if isinstance(names[0], str) else None
        if found is None:
            raise values.unsupported("architectures", names[0], supported)
        if model_type is not None and model_type != found:
            raise values.unsupported("model_type", model_type, f"{names[0]} has {found}")
        return found
    if model_type is None:
        raise values.error("model_type", "is missing")
    if model_type not in _FAMILIES:
        raise values.unsupported("model_type", model_type, supported)
    return str(model_type)


def _head_dim(values: ConfigValues, family: _Family, hidden_size: int, num_heads: int) -> int:
    head_dim = values.size("head_dim", family.head_dim)
    if head_dim is None:
        if hidden_size % num_heads:
            raise values.error(
                "num_attention_heads", f"is {num_heads}, which does not divide {hidden_size}"
            )
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise values.unsupported("head_dim", head_dim, "rotary embedding needs an even one")
    return int(head_dim)


def _sliding_window(values: ConfigValues, architecture: str, num_layers: int) -> int | None:
    """One window for all layers, or None. Layers that differ are refused."""
    if architecture == "llama":
        return None
    if architecture == "mistral":
        return _window(values)
    if not values.flag("use_sliding_window", False) or _window(values) is None:
        return None
    layer_types = values.get("layer_types")
    if layer_types is None:
        full = values.get("max_window_layers")
        full = 28 if full is None else full
        if not isinstance(full, int) or isinstance(full, bool) or full < 0:
            raise values.error("max_window_layers", f"is {full!r}, expected an integer >= 0")
        kinds = {"sliding_attention"} if full < num_layers else set()
        kinds |= {"full_attention"} if full > 0 else set()
    else:
        if not isinstance(layer_types, list) or not all(isinstance(t, str) for t in layer_types):
            raise values.error("layer_types", f"is {layer_types!r}, expected a list of names")
        kinds = set(layer_types)
    if kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"}:
        raise values.unsupported(
            "layer_types", sorted(kinds), "all layers must have the same kind of attention"
        )
    return _window(values)


def _window(values: ConfigValues) -> int | None:
    # Here null is a statement (no window) and differs from an absent key.
    absent = "sliding_window" not in values.values
    return DEFAULT_WINDOW if absent else values.size("sliding_window", None)


def _rope(values: ConfigValues, head_dim: int, max_position: int) -> RopeConfig:
    section = _rope_section(values)
    theta_inside = section.number("rope_theta", None)
    theta = theta_inside or values.number("rope_theta", DEFAULT_THETA)
    kind = section.text("rope_type", None) or section.text("type", None) or "default"
    if section.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise section.unsupported(
            "partial_rotary_factor", section.get("partial_rotary_factor"), "supported: 1.0"
        )
    if kind == "default":
        return RopeConfig(theta=theta, dim=head_dim, style="neox")
    factor_key = "factor"
    if kind == "linear":
        return RopeConfig(
            theta=theta, dim=head_dim, style="neox", scaling="linear",
            factor=section.number(factor_key),
        )  # fmt: skip
    if kind != "llama3":
        raise section.unsupported("rope_type", kind, "supported: default, linear, llama3")
    low = section.number("low_freq_factor")
    high = section.number("high_freq_factor")
    if high <= low:
        raise section.error("high_freq_factor", f"is {high}, must exceed low_freq_factor {low}")
    return RopeConfig(
        theta=theta,
        dim=head_dim,
        style="neox",
        scaling="llama3",
        factor=section.number(factor_key),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=section.size("original_max_position_embeddings", max_position),
    )


def _rope_section(values: ConfigValues) -> ConfigValues:
    """`rope_scaling` where it is set, else `rope_parameters`, else nothing."""
    found: dict[str, Any] = {}
    prefix = "rope_scaling."
    for key in ("rope_parameters", "rope_scaling"):
        section = values.get(key)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise values.error(key, f"is {section!r}, expected a dictionary")
        nested = [name for name, value in section.items() if isinstance(value, dict)]
        if nested:
            raise values.unsupported(
                key, section, f"rotary settings per layer type ({nested[0]}) are not"
            )
        # A rope_scaling beside rope_parameters replaces the kind and keeps the base.
        theta = {"rope_theta": found["rope_theta"]} if "rope_theta" in found else {}
        found, prefix = theta | section, f"{key}."
    return ConfigValues(values.path, found, prefix=prefix)


def _generation_defaults(hints: ConfigValues) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    for key in GENERATION_DEFAULTS:
        value = hints.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise hints.error(key, f"is {value!r}, expected a number")
        defaults[key] = value
    return defaults
