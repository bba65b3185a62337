"""The arithmetic of the ops that work row by row: norm, rope, activations, routing, pooling.

Plain functions on float32 arrays. No graph, no cache, no matrix products.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from octavo.graph.ops import RopeSpec, Route
from octavo.graph.step_arrays import F32, I32

_SQRT_HALF = np.float32(math.sqrt(0.5))
_GELU_TANH = np.float32(math.sqrt(2.0 / math.pi))


@dataclasses.dataclass(slots=True, frozen=True)
class Pairs:
    """Row space P: token-expert pairs by (token, descending score, lower expert id)."""

    tokens: I32  # [P]
    experts: I32  # [P]
    weights: F32  # [P]
    top_k: int


def norm(
    x: F32, weight: F32, *, kind: str, bias: F32 | None, eps: float, add_one: bool
) -> F32:
    """RMS or layer norm of every group of len(weight) columns."""
    groups = x.reshape(x.shape[0], x.shape[1] // weight.size, weight.size)
    if kind == "layer":
        groups = groups - groups.mean(-1, keepdims=True)
    mean_square = np.square(groups).mean(-1, keepdims=True)
    scale = weight + np.float32(1) if add_one else weight
    out = groups / np.sqrt(mean_square + np.float32(eps)) * scale
    if bias is not None:
        out = out + bias
    return out.reshape(x.shape)


def rope_table(spec: RopeSpec, positions: I32) -> tuple[F32, F32]:
    """cos and sin [rows, dim / 2] of every row's angles, taken in float64."""
    angles = positions[:, None].astype(np.float64) * np.asarray(spec.inv_freq)
    factor = spec.attention_factor
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(
        np.float32
    )


def rope(x: F32, spec: RopeSpec, *, head_dim: int, table: tuple[F32, F32]) -> F32:
    """Rotates every head of x [rows, heads * head_dim]."""
    heads = x.reshape(x.shape[0], -1, head_dim)
    cos, sin = (part[:, None] for part in table)
    half = spec.dim // 2
    if spec.style == "neox":
        first, second = slice(0, half), slice(half, spec.dim)
    else:
        first, second = slice(0, spec.dim, 2), slice(1, spec.dim, 2)
    a, b = heads[..., first], heads[..., second]
    out = heads.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out.reshape(x.shape)


def activation(x: F32, kind: str) -> F32:
    """silu, gelu or gelu_tanh."""
    if kind == "silu":
        return x * _sigmoid(x)
    if kind == "gelu_tanh":
        inner = _GELU_TANH * (x + np.float32(0.044715) * x * x * x)
        bend = np.tanh(inner)
    else:
        assert kind == "gelu", kind
        bend = _erf(x * _SQRT_HALF)
    out: F32 = np.multiply(x, np.float32(0.5))
    out *= bend + np.float32(1)
    return out


def _sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)), without overflow: beyond 80 float32 cannot tell."""
    out: F32 = np.exp(-np.maximum(x, np.float32(-80)))
    out += np.float32(1)
    return np.reciprocal(out, out=out)


def _erf(x: F32) -> F32:
    """NumPy has no erf; math.erf is exact enough for every float32."""
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float32, x.size).reshape(x.shape)


def elementwise(x: F32, kind: str, value: float) -> F32:
    """See ops.Map."""
    if kind == "scale":
        return x * np.float32(value)
    if kind == "softcap":
        return np.float32(value) * np.tanh(x / np.float32(value))
    return activation(x, kind)


def route(logits: F32, op: Route, bias: F32 | None) -> Pairs:
    """The pairs of router logits [T, E]."""
    if op.score == "softmax":
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
    else:
        scores = _sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if op.groups is not None:
        choice = _keep_groups(choice, *op.groups, pairwise=bias is not None)
    # A stable sort of the negated scores leaves equal ones in the order of expert ids.
    experts = np.argsort(-choice, axis=-1, kind="stable")[:, : op.top_k]
    weights = np.take_along_axis(scores, experts, -1)
    if op.renorm:
        weights = weights / weights.sum(-1, keepdims=True)
    tokens = np.repeat(np.arange(logits.shape[0], dtype=np.int32), op.top_k)
    return Pairs(
        tokens=tokens, experts=experts.astype(np.int32).ravel(), weights=weights.ravel(),
        top_k=op.top_k,
    )  # fmt: skip


def _keep_groups(choice: F32, count: int, kept: int, *, pairwise: bool) -> F32:
    """-inf for experts outside the `kept` best groups (by best expert, or by the best two)."""
    groups = choice.reshape(choice.shape[0], count, -1)
    best = -np.sort(-groups, axis=-1)[..., : 2 if pairwise else 1].sum(-1)
    chosen = np.argsort(-best, axis=-1, kind="stable")[:, :kept]
    mask = np.zeros(best.shape, np.bool_)
    np.put_along_axis(mask, chosen, True, -1)
    return np.where(mask[..., None], groups, np.float32(-np.inf)).reshape(choice.shape)


def combine(x: F32, pairs: Pairs) -> F32:
    """Weighted rows of each token added up in P order."""
    weighted = (x * pairs.weights[:, None]).reshape(-1, pairs.top_k, x.shape[1])
    out = weighted[:, 0].copy()
    for rank in range(1, pairs.top_k):
        out += weighted[:, rank]
    return out


def pool(
    x: F32, query_start_loc: npt.NDArray[np.int32], *, kind: str, normalize: bool
) -> F32:
    """One row a sequence; sequences are consecutive runs of rows."""
    starts, ends = query_start_loc[:-1], query_start_loc[1:]
    if kind == "mean":
        out = np.stack([x[a:b].mean(0) for a, b in zip(starts, ends, strict=True)])
    else:
        out = x[starts] if kind == "cls" else x[ends - 1]
    if normalize:
        length = np.sqrt(np.square(out).sum(-1, keepdims=True))
        out = out / np.maximum(length, np.float32(1e-12))
    return out
