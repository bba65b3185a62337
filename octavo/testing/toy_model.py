"""Models without a file: a tiny Llama over bytes in any storage type, and the toy model that
uses what no supported architecture does (two KV groups, softcap, sinks, experts).

For tests; random weights, no language.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from octavo.graph.graph import Graph, Value
from octavo.graph.ops import KVStoreSpec, RopeSpec
from octavo.graph.recorder import Recorder, matrix, vector
from octavo.models.registry import record
from octavo.testing.byte_tokenizer import BOS_ID, EOS_ID, IM_END_ID, VOCAB_SIZE, raw_byte_tokenizer
from octavo.weights.dequant import dequantize
from octavo.weights.model_config import ModelConfig, RopeConfig
from octavo.weights.quantize import quantize
from octavo.weights.tensor_names import hf_from_canonical, required_tensors

Array = npt.NDArray[np.float32]


class MemoryWeights:
    """seam.WeightSource over arrays: matrices in storage type `quant`, vectors in F32.

    `overrides`: the storage type of single tensors.
    """

    def __init__(
        self,
        tensors: Mapping[str, Array],
        *,
        quant: str = "F32",
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self._shapes = {name: values.shape for name, values in tensors.items()}
        self._quants = {
            name: quant if values.ndim == 2 else "F32" for name, values in tensors.items()
        } | dict(overrides or {})
        self._raw = {
            name: quantize(values.reshape(-1, values.shape[-1]), self._quants[name])
            for name, values in tensors.items()
        }

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._shapes)

    def quant_of(self, name: str) -> str:
        """See the seam."""
        return self._quants[name]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """See the seam."""
        return self._raw[name]

    def f32(self, name: str) -> Array:
        """See the seam."""
        shape = self._shapes[name]
        return dequantize(self._raw[name], self._quants[name], shape[-1]).reshape(shape)

    def release(self, name: str) -> None:
        """Nothing to give back."""


@dataclasses.dataclass(slots=True, frozen=True)
class TinyModel:
    """A model in memory; `tensors` before quantization, `weights` after."""

    config: ModelConfig
    graph: Graph
    tensors: dict[str, Array]
    weights: MemoryWeights

    def save(self, folder: Path) -> Path:
        """Writes the float32 model and the byte tokenizer as a Hugging Face folder."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({hf_from_canonical(n): v for n, v in self.tensors.items()},
                  folder / "model.safetensors")  # fmt: skip
        config = self.config
        settings = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope.theta,
            "tie_word_embeddings": config.tie_word_embeddings,
            "hidden_act": config.hidden_act,
            "bos_token_id": config.bos_token_id,
            "eos_token_id": list(config.eos_token_ids),
        }
        (folder / "config.json").write_text(json.dumps(settings, indent=1))
        raw_byte_tokenizer().save(str(folder / "tokenizer.json"))
        return folder


def tiny_llama(
    seed: int = 0,
    *,
    quant: str = "F32",
    overrides: Mapping[str, str] | None = None,
    vocab_size: int = VOCAB_SIZE,
    num_layers: int = 2,
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    intermediate_size: int = 128,
    max_position_embeddings: int = 512,
    sliding_window: int | None = None,
    tie_word_embeddings: bool = False,
) -> TinyModel:
    """A Llama over the byte tokenizer's vocabulary (with vocab_size: and ids it does not know),
    weights in storage type `quant`.

    Hidden and intermediate size must be multiples of the type's block (32).
    """
    config = ModelConfig(
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0, dim=head_dim, style="neox"),
        sliding_window=sliding_window,
        tie_word_embeddings=tie_word_embeddings,
        attention_bias=False,
        qk_norm=False,
        hidden_act="silu",
        eos_token_ids=(EOS_ID, IM_END_ID),
        bos_token_id=BOS_ID,
    )
    rng = np.random.default_rng(seed)
    tensors = {name: _draw(rng, name, shape) for name, shape in required_tensors(config)}
    weights = MemoryWeights(tensors, quant=quant, overrides=overrides)
    return TinyModel(config, record(config, weights.names), tensors, weights)


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Random values whose products keep their size: variance 1 / columns."""
    values = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return np.float32(1) + np.float32(0.1) * values
    if name.startswith("embed_tokens"):
        return values * np.float32(0.25)
    return values * np.float32(2.0 / np.sqrt(shape[-1]))


@dataclasses.dataclass(slots=True, frozen=True)
class ToyShape:
    """Sizes and settings of the toy model."""

    vocab: int = 96
    hidden: int = 48
    heads: int = 6
    kv_heads: int = 2
    k_dim: int = 16
    v_dim: int = 24  # K and V widths may differ
    experts: int = 5
    top_k: int = 2
    inner: int = 32
    window: int = 7
    score_cap: float = 20.0
    logit_cap: float = 12.0
    eps: float = 1e-5
    rope_dim: int = 12  # the last k_dim - rope_dim columns of a head pass
    thetas: tuple[float, float] = (100.0, 10000.0)  # of the window layer and the full layer


def toy_tensors(seed: int, shape: ToyShape) -> dict[str, Array]:
    """Random weights of the toy model by tensor name."""
    rng = np.random.default_rng(seed)
    h, e = shape.hidden, shape.experts
    kv = shape.kv_heads
    sizes: dict[str, tuple[int, ...]] = {"embed": (shape.vocab, h), "norm": (h,)}
    for at in ("0", "1"):
        sizes |= {
            f"{at}.norm1": (h,), f"{at}.norm1_bias": (h,), f"{at}.norm2": (h,),
            f"{at}.q": (shape.heads * shape.k_dim, h), f"{at}.k": (kv * shape.k_dim, h),
            f"{at}.v": (kv * shape.v_dim, h), f"{at}.o": (h, shape.heads * shape.v_dim),
            f"{at}.q_norm": (shape.k_dim,), f"{at}.sinks": (shape.heads,),
            f"{at}.router": (e, h), f"{at}.router_bias": (e,), f"{at}.down_bias": (e * h,),
            f"{at}.gate": (e * shape.inner, h), f"{at}.up": (e * shape.inner, h),
            f"{at}.down": (e * h, shape.inner),
        }  # fmt: skip
    return {
        name: rng.standard_normal(size, np.float32)
        * np.float32(1.0 if len(size) == 1 else 1.5 / np.sqrt(size[-1]))
        for name, size in sizes.items()
    }


def toy_graph(shape: ToyShape) -> Graph:
    """Layer 0: window, KV group 1, softcapped scores. Layer 1: full, group 0, sinks. Both: experts.

    tests/graph holds the same model as a plain NumPy program.
    """
    rec = Recorder("toy", vocab_size=shape.vocab, hidden_size=shape.hidden)
    table = matrix("embed", [("embed", shape.vocab, "embed")], in_features=shape.hidden)
    with rec.section("prologue", kind="prologue"):
        x = rec.embed(table, scale=2.0)
    for layer in range(2):
        with rec.section(f"layer.{layer}", kind="layer"):
            x = rec.add(x, _toy_attention(rec, x, layer, shape), scale=0.5)
            rec.mark("after_attention")
            x = rec.add(x, _toy_experts(rec, x, layer, shape))
            rec.mark("after_mlp")
            rec.tap(x, f"hidden.{layer}")
    with rec.section("tail", kind="tail"):
        rows = rec.select_rows(x, index="logits_indices")
        rows = rec.norm(rows, vector("norm", shape.hidden), eps=shape.eps, add_one=True)
        (scores,) = rec.linear(rows, table)
        logits = rec.map(scores, "softcap", value=shape.logit_cap)
        rec.sample(logits)
    return rec.finish(logits)


def _toy_attention(rec: Recorder, x: Value, layer: int, shape: ToyShape) -> Value:
    at, windowed = str(layer), layer == 0
    h = rec.norm(
        x, vector(f"{at}.norm1", shape.hidden), kind="layer",
        bias=vector(f"{at}.norm1_bias", shape.hidden), eps=shape.eps,
    )  # fmt: skip
    parts = [
        (f"{at}.q", shape.heads * shape.k_dim, "q"),
        (f"{at}.k", shape.kv_heads * shape.k_dim, "k"),
        (f"{at}.v", shape.kv_heads * shape.v_dim, "v"),
    ]
    q, k, v = rec.linear(h, matrix(f"{at}.qkv", parts, in_features=shape.hidden))
    q = rec.norm(q, vector(f"{at}.q_norm", shape.k_dim), eps=shape.eps)
    freqs = [shape.thetas[layer] ** (-2 * i / shape.rope_dim) for i in range(shape.rope_dim // 2)]
    rope = RopeSpec(
        dim=shape.rope_dim, style="interleaved" if windowed else "neox", inv_freq=tuple(freqs)
    )
    store = rec.kv_store(
        KVStoreSpec(
            name=at, group=1 if windowed else 0, kind="window" if windowed else "full",
            num_kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim,
            window=shape.window if windowed else None,
        )
    )  # fmt: skip
    rec.kv_write(rec.rope(k, rope, head_dim=shape.k_dim), v, store=store)
    heads = rec.attention(
        rec.rope(q, rope, head_dim=shape.k_dim), store=store, num_heads=shape.heads, scale=0.7,
        window=shape.window if windowed else None, softcap=shape.score_cap if windowed else None,
        sinks=None if windowed else vector(f"{at}.sinks", shape.heads),
    )  # fmt: skip
    out = matrix(f"{at}.o", [(f"{at}.o", shape.hidden, "o")], in_features=heads.width)
    return rec.collective(rec.linear(heads, out)[0], "all_reduce", group="tp")


def _toy_experts(rec: Recorder, x: Value, layer: int, shape: ToyShape) -> Value:
    at, e, inner, hidden = str(layer), shape.experts, shape.inner, shape.hidden
    h = rec.norm(x, vector(f"{at}.norm2", hidden), eps=shape.eps)
    router = matrix(f"{at}.router", [(f"{at}.router", e, "router")], in_features=hidden)
    (scores,) = rec.linear(h, router)
    biased = layer == 1
    pairs = rec.route(
        scores, top_k=shape.top_k, score="sigmoid" if biased else "softmax", renorm=biased,
        bias=vector(f"{at}.router_bias", e) if biased else None,
    )  # fmt: skip
    rows = rec.gather(h, pairs)
    parts = [(f"{at}.gate", e * inner, "gate"), (f"{at}.up", e * inner, "up")]
    gate, up = rec.linear(rows, matrix(f"{at}.gate_up", parts, in_features=hidden), experts=e)
    y = rec.glu(gate, up, act="gelu_tanh")
    down = matrix(f"{at}.down", [(f"{at}.down", e * hidden, "down")], in_features=inner)
    (y,) = rec.linear(y, down, bias=vector(f"{at}.down_bias", e * hidden), experts=e)
    return rec.combine(y, pairs)
