"""Llama and its kin (SmolLM2, Mistral): pre-norm decoder, rotary GQA, gated MLP.

A sliding window, where the file has one (Mistral), holds in every layer.
"""

from collections.abc import Set as AbstractSet

from octavo.graph.graph import Graph
from octavo.graph.recorder import Recorder
from octavo.models.blocks import DecoderBlocks
from octavo.models.rope import rope_spec
from octavo.weights.model_config import ModelConfig


def record(config: ModelConfig, tensor_names: AbstractSet[str]) -> Graph:
    """The model's graph."""
    return record_decoder(config, tensor_names, qk_norm=False)


def record_decoder(
    config: ModelConfig, tensor_names: AbstractSet[str], *, qk_norm: bool
) -> Graph:
    """Llama's wiring; `qk_norm` puts an RMS norm on every query and key head before rope."""
    rec = Recorder(
        config.architecture, vocab_size=config.vocab_size, hidden_size=config.hidden_size
    )
    blocks = DecoderBlocks(rec, config, tensor_names, rope_spec(config.rope))
    with rec.section("prologue", kind="prologue"):
        x = blocks.embed_tokens()
    for layer in range(config.num_layers):
        with rec.section(f"layer.{layer}", kind="layer"):
            h = blocks.norm(x, f"layers.{layer}.input_layernorm.weight")
            h = blocks.attention(h, layer, window=config.sliding_window, qk_norm=qk_norm)
            x = rec.add(x, h)
            rec.mark("after_attention")
            h = blocks.norm(x, f"layers.{layer}.post_attention_layernorm.weight")
            x = rec.add(x, blocks.mlp(h, layer))
            rec.mark("after_mlp")
    with rec.section("tail", kind="tail"):
        logits = blocks.head(x)
    return rec.finish(logits)
