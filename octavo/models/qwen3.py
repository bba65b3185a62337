"""Qwen3 (dense): Llama's wiring with an RMS norm on every query and key head."""

from collections.abc import Set as AbstractSet

from octavo.graph.graph import Graph
from octavo.models.llama import record_decoder
from octavo.weights.model_config import ModelConfig


def record(config: ModelConfig, tensor_names: AbstractSet[str]) -> Graph:
    """The model's graph."""
    assert config.qk_norm, "Qwen3 normalizes query and key heads"
    return record_decoder(config, tensor_names, qk_norm=True)
