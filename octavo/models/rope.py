"""From a model file's rotary settings to final frequencies. Pure arithmetic in float64."""

import math
from typing import Literal

from octavo.graph.ops import RopeSpec
from octavo.weights.model_config import RopeConfig


def rope_spec(config: RopeConfig) -> RopeSpec:
    """Frequencies with any scaling applied.

    Sources: RoFormer (arXiv:2104.09864) for theta ** (-2i / dim); position interpolation
    (arXiv:2306.15595) for "linear"; the Llama 3.1 model card for "llama3".
    """
    pairs = config.dim // 2
    freqs = [config.theta ** (-2.0 * i / config.dim) for i in range(pairs)]
    if config.freqs is not None:
        assert len(config.freqs) == pairs and config.scaling is None, config
        freqs = [freq / divisor for freq, divisor in zip(freqs, config.freqs, strict=True)]
    elif config.scaling == "linear":
        freqs = [freq / config.factor for freq in freqs]
    elif config.scaling == "llama3":
        freqs = [_llama3(freq, config) for freq in freqs]
    else:
        assert config.scaling is None, config
    return RopeSpec(dim=config.dim, style=_style(config.style), inv_freq=tuple(freqs))


def _llama3(freq: float, config: RopeConfig) -> float:
    """Few turns within the original context: divided by factor; many: kept; between: blended."""
    turns = config.original_max_position * freq / (2.0 * math.pi)
    kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    kept = min(max(kept, 0.0), 1.0)
    return (1.0 - kept) * freq / config.factor + kept * freq


def _style(style: str) -> Literal["neox", "interleaved"]:
    assert style in ("neox", "interleaved"), style
    return "neox" if style == "neox" else "interleaved"
