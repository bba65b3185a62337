"""The parts that decoder models share: embedding, attention, gated MLP, head.

Wiring only: what flows into what. No arithmetic, no files, no backend.
"""

from collections.abc import Set as AbstractSet
from typing import Literal

from octavo.errors import UnsupportedModelError
from octavo.graph.graph import Value
from octavo.graph.ops import KVStoreSpec, Part, RopeSpec, ShardAxis, WeightRef
from octavo.graph.recorder import Recorder, matrix, vector
from octavo.weights.model_config import ModelConfig


class DecoderBlocks:
    """The shared parts of one model.

    `tensor_names`: what the model file holds; biases are wired where it has them.
    """

    def __init__(
        self, rec: Recorder, config: ModelConfig, tensor_names: AbstractSet[str], rope: RopeSpec
    ) -> None:
        self.rec = rec
        self.config = config
        self.names = tensor_names
        self.rope = rope
        self._act = glu_act(config.hidden_act)

    def embed_tokens(self) -> Value:
        """Token embeddings [T, hidden_size]."""
        return self.rec.embed(self._embedding())

    def norm(self, x: Value, name: str) -> Value:
        """RMS norm over whole rows."""
        weight = vector(name, self.config.hidden_size)
        return self.rec.norm(x, weight, eps=self.config.rms_norm_eps)

    def attention(self, x: Value, layer: int, *, window: int | None, qk_norm: bool) -> Value:
        """Self-attention of one layer: [T, hidden_size], without the residual."""
        rec, config, at = self.rec, self.config, f"layers.{layer}.self_attn"
        head_dim, kv_rows = config.head_dim, config.num_kv_heads * config.head_dim
        q_rows = config.num_heads * head_dim
        # Cut by whole KV-head groups: a rank holds its KV heads with all their query heads.
        parts = (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows))
        q, k, v = self._linear(x, f"{at}.qkv_proj", at, parts, shard="col", shard_unit=head_dim)
        if qk_norm:
            q = self._head_norm(q, f"{at}.q_norm.weight")
            k = self._head_norm(k, f"{at}.k_norm.weight")
        q = rec.rope(q, self.rope, head_dim=head_dim)
        k = rec.rope(k, self.rope, head_dim=head_dim)
        store = rec.kv_store(
            KVStoreSpec(
                name=f"layer.{layer}",
                group=0,
                kind="full" if window is None else "window",
                num_kv_heads=config.num_kv_heads,
                k_dim=head_dim,
                v_dim=head_dim,
                window=window,
            )
        )
        rec.kv_write(k, v, store=store)
        heads = rec.attention(
            q, store=store, num_heads=config.num_heads, scale=head_dim**-0.5, window=window
        )
        out = (("o_proj", config.hidden_size),)
        return self._linear(heads, f"{at}.o_proj", at, out, shard="row", shard_unit=1)[0]

    def mlp(self, x: Value, layer: int) -> Value:
        """Gated MLP of one layer: [T, hidden_size], without the residual."""
        config, at = self.config, f"layers.{layer}.mlp"
        parts = (("gate_proj", config.intermediate_size), ("up_proj", config.intermediate_size))
        gate, up = self._linear(x, f"{at}.gate_up_proj", at, parts, shard="col", shard_unit=1)
        hidden = self.rec.glu(gate, up, act=self._act)
        down = (("down_proj", config.hidden_size),)
        return self._linear(hidden, f"{at}.down_proj", at, down, shard="row", shard_unit=1)[0]

    def head(self, x: Value) -> Value:
        """Logits [R, vocab_size] of the rows that need them, and their sampling."""
        rec, config = self.rec, self.config
        rows = self.norm(rec.select_rows(x, index="logits_indices"), "norm.weight")
        name, parts = "lm_head.weight", [("lm_head.weight", config.vocab_size, "lm_head")]
        weight = matrix(name, parts, in_features=config.hidden_size, shard="col")
        (logits,) = rec.linear(rows, self._embedding() if config.tie_word_embeddings else weight)
        rec.sample(logits)
        return logits

    def _embedding(self) -> WeightRef:
        name, rows = "embed_tokens.weight", self.config.vocab_size
        parts = [(name, rows, "embed_tokens")]
        return matrix(name, parts, in_features=self.config.hidden_size)

    def _head_norm(self, x: Value, name: str) -> Value:
        weight = vector(name, self.config.head_dim)
        return self.rec.norm(x, weight, eps=self.config.rms_norm_eps)

    def _linear(
        self,
        x: Value,
        name: str,
        at: str,
        parts: tuple[tuple[str, int], ...],
        *,
        shard: ShardAxis,
        shard_unit: int,
    ) -> tuple[Value, ...]:
        """A linear of the file's tensors `at`.<part>.weight, and their biases where it has them."""
        sources = [(f"{at}.{part}.weight", rows, part) for part, rows in parts]
        weight = matrix(
            f"{name}.weight", sources, in_features=x.width, shard=shard, shard_unit=shard_unit
        )
        biases = tuple(
            Part(tensor=f"{at}.{part}.bias", rows=rows, target=part) for part, rows in parts
        )
        present = [bias.tensor in self.names for bias in biases]
        assert all(present) or not any(present), f"{name}: a bias for some parts only"
        bias = None
        if all(present):
            bias = WeightRef(name=f"{name}.bias", shape=(weight.shape[0],), parts=biases)
        return self.rec.linear(x, weight, bias=bias)


def glu_act(hidden_act: str) -> Literal["silu", "gelu", "gelu_tanh"]:
    """The op's name of a model file's activation. Raises UnsupportedModelError naming it."""
    known: dict[str, Literal["silu", "gelu", "gelu_tanh"]] = {
        "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_new": "gelu_tanh",
    }  # fmt: skip
    if hidden_act not in known:
        raise UnsupportedModelError(
            f"hidden_act is {hidden_act!r}: supported are {', '.join(sorted(known))}",
            param="hidden_act",
        )
    return known[hidden_act]
