"""The op vocabulary: one frozen dataclass an op, with the meaning of every field.

Meaning only: float32 values, no quantization, no fusion, no memory plan, no batch shape. Ops name
their inputs and outputs by value id; `graph.py` holds the values. Backends read these.

Row spaces of a value: T tokens of the step, R rows that need logits, S sequences,
P token-expert pairs, I selected rows.
"""

import dataclasses
from typing import Literal

RowSpace = Literal["T", "R", "S", "P", "I"]
ShardAxis = Literal["col", "row"]
ValueId = int


@dataclasses.dataclass(slots=True, frozen=True)
class Part:
    """One source tensor inside a fused weight: `rows` output rows, and the adapter target name."""

    tensor: str  # tensor name in the model file, e.g. layers.0.self_attn.q_proj.weight
    rows: int
    target: str  # short name adapters use, e.g. q_proj


@dataclasses.dataclass(slots=True, frozen=True)
class WeightRef:
    """A weight by name. Matrices are [out_features, in_features]; `parts` are stacked by rows.

    The storage type of each part is the model file's business; a backend asks the file.
    shard, shard_unit: which axis tensor parallelism would cut, and in units of how many rows.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    shard: ShardAxis | None = None
    shard_unit: int = 1


@dataclasses.dataclass(slots=True, frozen=True)
class RopeSpec:
    """Rotary embedding frequencies: pair i of `dim`/2 turns by position * inv_freq[i].

    style "neox" pairs (i, i + dim/2), "interleaved" pairs (2i, 2i+1). inv_freq is final: any
    scaling is applied in it. attention_factor multiplies cos and sin. Source: RoFormer
    (arXiv:2104.09864); Llama 3 scaling: Llama 3.1 model card.
    """

    dim: int
    style: Literal["neox", "interleaved"]
    inv_freq: tuple[float, ...]  # [dim / 2], float64 values
    attention_factor: float = 1.0


@dataclasses.dataclass(slots=True, frozen=True)
class KVStoreSpec:
    """Where one attention layer keeps K and V. Stores of one group share a block table."""

    name: str
    group: int  # KV group index: 0 for models with a single group
    kind: Literal["full", "window", "latent", "state"]
    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class Input:
    """A named float32 input [rows, width] (pipeline receive, drafter features)."""

    name: str
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Embed:
    """out[t] = table[token_ids[t]] * scale."""

    table: WeightRef
    scale: float
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Concat:
    """out = inputs side by side along the width."""

    inputs: tuple[ValueId, ...]
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class SelectRows:
    """out[r] = x[index[r]]; index names an array of StepArrays ("logits_indices": T to R)."""

    x: ValueId
    index: Literal["logits_indices"]
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Pool:
    """One row a sequence: its last row, mean, or first row ("cls"); L2-normalized on demand."""

    x: ValueId
    kind: Literal["last", "mean", "cls"]
    normalize: bool
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Tap:
    """Names a value so that a step may ask for it. Computes nothing."""

    x: ValueId
    name: str


@dataclasses.dataclass(slots=True, frozen=True)
class Norm:
    """RMS or layer norm over groups of `width` columns (the full width, or head_dim: QK-norm).

    rms: x / sqrt(mean(x^2) + eps) * (weight + add_one). weight has `width` elements.
    """

    x: ValueId
    kind: Literal["rms", "layer"]
    weight: WeightRef
    bias: WeightRef | None
    eps: float
    add_one: bool
    width: int
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Add:
    """out = x + y * scale."""

    x: ValueId
    y: ValueId
    scale: float
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Map:
    """Elementwise: "gelu", "gelu_tanh", "silu", "softcap" (value * tanh(x / value)), "scale"."""

    x: ValueId
    kind: Literal["gelu", "gelu_tanh", "silu", "softcap", "scale"]
    value: float
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Glu:
    """out = act(gate) * up."""

    gate: ValueId
    up: ValueId
    act: Literal["silu", "gelu", "gelu_tanh"]
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Linear:
    """outs[i] = x @ W[rows of part i].T + bias[rows of part i]; one output a part.

    experts: None, or E: then x lives in P rows, the rows of each part are E slices in expert order
    (part.rows = E * width of its output), and row p uses the slices of its pair's expert. An
    adapter's delta lands before any epilogue.
    """

    x: ValueId
    weight: WeightRef
    bias: WeightRef | None
    experts: int | None
    outs: tuple[ValueId, ...]


@dataclasses.dataclass(slots=True, frozen=True)
class Rope:
    """Rotates each head_dim-wide head of x by its row's position; columns past spec.dim pass."""

    x: ValueId
    spec: RopeSpec
    head_dim: int
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class KvWrite:
    """Stores k [T, heads * k_dim] and v [T, heads * v_dim] at slot_mapping[group] of the store."""

    k: ValueId
    v: ValueId
    store: str


@dataclasses.dataclass(slots=True, frozen=True)
class Attention:
    """Softmax attention of q [T, num_heads * k_dim] over what `store` holds of its sequence.

    The row at position p reads positions max(0, p - window + 1) .. p (causal) as stored. Query head
    h uses KV head h // (num_heads / num_kv_heads). softcap: cap * tanh(score / cap). sinks: one
    extra logit a head that takes part in the softmax's sum only.
    """

    q: ValueId
    store: str
    num_heads: int
    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    sinks: WeightRef | None
    out: ValueId  # [T, num_heads * v_dim]


@dataclasses.dataclass(slots=True, frozen=True)
class Route:
    """Picks top_k experts of each token from router logits x [T, E] and opens row space P.

    P rows are ordered by (token, descending score, lower expert id). score: how logits become
    weights; renorm: weights of the chosen sum to 1; bias: added for choosing only; groups:
    (number of groups, groups kept), or None.
    """

    x: ValueId
    top_k: int
    score: Literal["softmax", "sigmoid"]
    renorm: bool
    bias: WeightRef | None
    groups: tuple[int, int] | None
    out: ValueId  # [P, 1] the pair weights; pairs carry (token, expert)


@dataclasses.dataclass(slots=True, frozen=True)
class Gather:
    """P rows from T rows: out[p] = x[token of pair p]."""

    x: ValueId
    pairs: ValueId
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Combine:
    """T rows from P rows: out[t] = sum over its pairs, in P order, of weight * x[p]."""

    x: ValueId
    pairs: ValueId
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Collective:
    """all_reduce or all_gather of x over a parallel group; the identity on one device."""

    x: ValueId
    kind: Literal["all_reduce", "all_gather"]
    group: str
    out: ValueId


@dataclasses.dataclass(slots=True, frozen=True)
class Sample:
    """Draws one token a row of logits [R, vocab] as StepArrays' sampling fields say."""

    logits: ValueId


Op = (
    Input | Embed | Concat | SelectRows | Pool | Tap | Norm | Add | Map | Glu | Linear | Rope
    | KvWrite | Attention | Route | Gather | Combine | Collective | Sample
)
