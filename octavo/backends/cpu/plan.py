"""The lowered plan as values: fused records in execution order (native twins in csrc/plan.h).

Names of tensors only, no arrays; knows no storage types and no batch shape.
"""

import dataclasses
from typing import Literal

from octavo.graph.ops import RopeSpec


@dataclasses.dataclass(slots=True, frozen=True)
class MatrixSpec:
    """One tensor [rows, k]; rows are packed in groups (a head, or all of them) of `group_rows`."""

    tensor: str
    rows: int
    k: int
    group_rows: int


@dataclasses.dataclass(slots=True, frozen=True)
class ProjectionSpec:
    """y = x @ matrix.T + bias."""

    matrix: MatrixSpec
    bias: str | None


@dataclasses.dataclass(slots=True, frozen=True)
class NormSpec:
    """RMS norm. weight None: no norm."""

    weight: str | None = None
    eps: float = 0.0
    add_one: bool = False


@dataclasses.dataclass(slots=True, frozen=True)
class QkvRecord:
    """norm -> Q, K, V -> QK-norm -> rope -> KV write."""

    norm: NormSpec
    q: ProjectionSpec
    k: ProjectionSpec
    v: ProjectionSpec
    q_norm: NormSpec
    k_norm: NormSpec
    q_rope: RopeSpec | None
    k_rope: RopeSpec | None
    store: str


@dataclasses.dataclass(slots=True, frozen=True)
class AttentionRecord:
    """Attention of the QKV record before it."""

    store: str
    num_heads: int
    window: int | None
    scale: float
    softcap: float | None


@dataclasses.dataclass(slots=True, frozen=True)
class AddLinearRecord:
    """stream += projection(what the record before it made) * scale."""

    linear: ProjectionSpec
    source: Literal["attention", "glu"]
    scale: float


@dataclasses.dataclass(slots=True, frozen=True)
class GluRecord:
    """norm -> gate, up -> silu(gate) * up."""

    norm: NormSpec
    gate: ProjectionSpec
    up: ProjectionSpec


Record = QkvRecord | AttentionRecord | AddLinearRecord | GluRecord


@dataclasses.dataclass(slots=True, frozen=True)
class PlanSpec:
    """Embedding, the records of all layers, and the tail: rows -> norm -> head -> sampling."""

    embed: MatrixSpec
    embed_scale: float
    records: tuple[Record, ...]
    tail_norm: NormSpec
    head: ProjectionSpec
    logit_scale: float
