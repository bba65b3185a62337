"""Qwen2 and Qwen2.5: Llama's wiring with biases on Q, K and V."""

from collections.abc import Set as AbstractSet

from octavo.graph.graph import Graph
from octavo.models.llama import record_decoder
from octavo.weights.model_config import ModelConfig


def record(config: ModelConfig, tensor_names: AbstractSet[str]) -> Graph:
    """The model's graph."""
    assert "layers.0.self_attn.q_proj.bias" in tensor_names, "Qwen2 has biases on Q, K and V"
    return record_decoder(config, tensor_names, qk_norm=False)
