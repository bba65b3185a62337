"""What a model file says about its model, whatever the format: values only.

It knows neither file nor key names; `gguf_config` and `hf_config` fill it in.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of the first (and only) kind: all `dim` components of a head rotate.

    `style`: "neox" rotates component i with i + dim/2, "interleaved" 2i with 2i + 1. `scaling`:
    None, "linear" (positions divided by `factor`) or "llama3" (frequencies below
    `low_freq_factor` turns per `original_max_position` divided by `factor`, above
    `high_freq_factor` kept, blended between). `freqs`: when not None, dim/2 divisors of the
    unscaled frequencies, read from the file; they replace `scaling`, which then is None.
    """

    theta: float
    dim: int
    style: str
    scaling: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    freqs: tuple[float, ...] | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class ModelConfig:
    """The shape and settings of one decoder-only model.

    `sliding_window`: a token sees the keys at distance 0 to window - 1; None is all of them.
    `attention_bias`: q, k and v have biases. `generation_defaults`: sampling parameters the
    model's makers advise, empty where the format has none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    sliding_window: int | None
    tie_word_embeddings: bool
    attention_bias: bool
    qk_norm: bool
    hidden_act: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    generation_defaults: dict[str, float | int] = field(default_factory=dict)
