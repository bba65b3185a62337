"""A loaded model on the native executor: weights packed, buffers bound, one native call a step.

Knows the plan and the step arrays; knows no requests and no scheduler.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo import env
from octavo.backends.cpu.plan import (
    AddLinearRecord,
    AttentionRecord,
    GluRecord,
    MatrixSpec,
    NormSpec,
    PlanSpec,
    ProjectionSpec,
    QkvRecord,
    Record,
)
from octavo.backends.cpu.storage import Storage, source_rows, storage_of
from octavo.backends.seam import KVOptions, WeightSource
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.graph.graph import Graph
from octavo.graph.ops import RopeSpec
from octavo.graph.step_arrays import F32, SamplingArrays, StepArrays, StepLimits, StepOutputs

_KV_DTYPES = {"f32": 0, "bf16": 1, "int8": 2}
# Tables of alternatives up to this width are kept from step to step; wider ones are made for the
# step that wants them.
_KEPT_TOP = 64
_FEW_ROWS = 64
_STEP_FIELDS = (
    "token_ids", "positions", "query_start_loc", "context_len", "block_tables", "slot_mapping",
    "logits_indices",
)  # fmt: skip


class NativeModel:
    """See seam.LoadedModel."""

    def __init__(
        self,
        native: Any,
        plan: PlanSpec,
        graph: Graph,
        weights: WeightSource,
        *,
        kv: KVOptions,
        limits: StepLimits,
        num_threads: int,
    ) -> None:
        self._limits = limits
        self._vocab = graph.vocab_size
        builder = _Builder(native, plan, graph, weights, kv, limits, num_threads)
        self._native: Any = builder.build()
        self._facts = builder.facts
        self._bound: StepArrays | None = None
        self._sampled = np.zeros(limits.max_rows, np.int32)
        self._logprob = np.zeros(limits.max_rows, np.float32)
        self._rank = np.zeros(limits.max_rows, np.int32)
        self._top_ids = np.zeros((limits.max_rows, 0), np.int32)
        self._top_logprobs = np.zeros((limits.max_rows, 0), np.float32)
        self._logits: F32 | None = None

    def step(self, arrays: StepArrays, *, want_logits: bool = False) -> StepOutputs:
        """See the seam. Raises ValueError for an index outside its array or the KV cache."""
        if arrays is not self._bound:
            self._bind(arrays)
        rows = arrays.num_rows
        top = self._bind_top(arrays.sampling, rows)
        if want_logits and self._logits is None:
            self._logits = np.empty((self._limits.max_rows, self._vocab), np.float32)
            self._native.bind_logits(self._logits)
        self._native.step(arrays.num_tokens, arrays.num_seqs, rows, want_logits)
        logits = self._logits[:rows] if want_logits and self._logits is not None else None
        return StepOutputs(
            self._sampled[:rows], self._logprob[:rows], self._rank[:rows],
            self._top_ids[:rows, :top], self._top_logprobs[:rows, :top], logits, 1,
            self._native.merged_rows,
        )  # fmt: skip

    def copy_slots(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """See the seam. Whole blocks move; slots past the count are nobody's."""
        for source, destination, _ in copies:
            self._native.copy_block(source, destination)

    def describe(self) -> Mapping[str, str]:
        """See the seam."""
        return self._facts

    def close(self) -> None:
        """See the seam."""
        self._native = None
        self._bound = None

    def _bind(self, arrays: StepArrays) -> None:
        """Hands the native side the addresses; `_bound` keeps the arrays alive."""
        fields = {name: getattr(arrays, name) for name in _STEP_FIELDS}
        fields |= vars(arrays.sampling)
        fields |= {
            "out_sampled": self._sampled, "out_logprob": self._logprob, "out_rank": self._rank
        }  # fmt: skip
        self._native.bind_arrays(fields)
        self._native.bind_top(self._top_ids, self._top_logprobs)
        self._bound = arrays

    def _bind_top(self, sampling: SamplingArrays, rows: int) -> int:
        """Makes room for the most alternatives any row asks for; returns that number."""
        if rows <= _FEW_ROWS:  # little code: the caches are cold between steps
            top = max((0, *sampling.num_logprobs.data[:rows]))
        else:
            top = max(0, int(sampling.num_logprobs[:rows].max(initial=0)))
        kept = top <= _KEPT_TOP
        if top != self._top_ids.shape[1] or (not kept and self._top_ids.shape[0] < rows):
            shape = (self._limits.max_rows if kept else rows, top)
            self._top_ids = np.zeros(shape, np.int32)
            self._top_logprobs = np.zeros(shape, np.float32)
            self._native.bind_top(self._top_ids, self._top_logprobs)
        return top


class _Builder:
    """Packs weights in execution order into one native model."""

    def __init__(
        self,
        native: Any,
        plan: PlanSpec,
        graph: Graph,
        weights: WeightSource,
        kv: KVOptions,
        limits: StepLimits,
        num_threads: int,
    ) -> None:
        self.facts: dict[str, str] = {}
        self._native = native
        self._plan = plan
        self._graph = graph
        self._weights = weights
        self._kv = kv
        self._limits = limits
        self._num_threads = num_threads
        self._max_position = limits.max_blocks_per_seq * kv.block_size
        self._matrices: dict[MatrixSpec, int] = {}
        self._vectors: dict[str, int] = {}
        self._ropes: dict[RopeSpec, int] = {}
        self._stores: dict[str, int] = {}
        self._model: Any = None

    def build(self) -> Any:
        self._model = self._new_model()
        for name, store in self._graph.kv_stores.items():
            self._stores[name] = self._model.add_store(
                store.group, store.num_kv_heads, store.k_dim, store.window or 0
            )
        self._model.set_embed(self._matrix(self._plan.embed), self._plan.embed_scale)
        for record in self._plan.records:
            self._add(record)
        tail = self._plan
        self._model.set_tail(
            self._norm(tail.tail_norm), self._projection(tail.head), tail.logit_scale
        )
        self._model.finish()
        self.facts = {
            "isa": self._model.isa, "threads": str(self._model.num_threads),
            "weights_bytes": str(self._model.weight_bytes), "kv_bytes": str(self._model.kv_bytes),
            **self.facts,
        }  # fmt: skip
        return self._model

    def _new_model(self) -> Any:
        limits, kv = self._limits, self._kv
        if kv.dtype not in _KV_DTYPES:
            raise ConfigError(
                f"kv_cache_dtype is {kv.dtype!r}: use one of {', '.join(_KV_DTYPES)}",
                param="kv_cache_dtype",
            )
        config = {
            "max_tokens": limits.max_tokens, "max_seqs": limits.max_seqs,
            "max_rows": limits.max_rows, "max_blocks_per_seq": limits.max_blocks_per_seq,
            "num_kv_groups": limits.num_kv_groups, "max_mask_rows": limits.max_mask_rows,
            "max_sparse": limits.max_sparse, "max_report_ids": limits.max_report_ids,
            "max_position": self._max_position,
            "block_size": kv.block_size, "num_blocks": kv.num_blocks,
            "merge_shared_prefix": kv.merge_shared_prefix,
            "vocab_size": self._graph.vocab_size, "hidden_size": self._graph.hidden_size,
            "kv_dtype": _KV_DTYPES[kv.dtype], "num_threads": self._num_threads,
            "usable_cpus": _usable_cpus(), "weight_bytes": self._weight_bytes(),
        }  # fmt: skip
        isa = env.cpu_isa()
        try:
            return self._native.NativeModel(config, isa or "")
        except ValueError as error:
            raise ConfigError(f"the cpu backend cannot start: {error}") from None

    def _add(self, record: Record) -> None:
        model = self._model
        match record:
            case QkvRecord():
                model.add_qkv(
                    self._norm(record.norm), self._projection(record.q),
                    self._projection(record.k), self._projection(record.v),
                    self._norm(record.q_norm), self._norm(record.k_norm),
                    self._rope(record.q_rope), self._rope(record.k_rope),
                    self._stores[record.store],
                )  # fmt: skip
            case AttentionRecord():
                model.add_attention(
                    self._stores[record.store], record.num_heads, record.window or 0,
                    record.scale, record.softcap or 0.0,
                )  # fmt: skip
            case AddLinearRecord():
                from_glu = record.source == "glu"
                model.add_linear(self._projection(record.linear), from_glu, record.scale)
            case GluRecord():
                model.add_glu(
                    self._norm(record.norm), self._projection(record.gate),
                    self._projection(record.up),
                )  # fmt: skip

    def _storage(self, spec: MatrixSpec) -> Storage:
        return storage_of(self._weights.quant_of(spec.tensor), spec.k)

    def _matrix(self, spec: MatrixSpec) -> int:
        if spec not in self._matrices:
            storage = self._storage(spec)
            rows = source_rows(self._weights, spec.tensor, storage)
            self._matrices[spec] = self._model.add_matrix(
                storage.type_id, spec.rows, spec.k, spec.group_rows, rows
            )
            del rows
            quant = self._weights.quant_of(spec.tensor)
            self._weights.release(spec.tensor)
            self.facts[spec.tensor] = f"{storage.layout} (from {quant})"
        return self._matrices[spec]

    def _vector(self, tensor: str) -> int:
        if tensor not in self._vectors:
            values = np.ascontiguousarray(self._weights.f32(tensor), np.float32).reshape(-1)
            self._vectors[tensor] = self._model.add_vector(values)
            self.facts[tensor] = f"f32 (from {self._weights.quant_of(tensor)})"
        return self._vectors[tensor]

    def _projection(self, spec: ProjectionSpec) -> Any:
        bias = -1 if spec.bias is None else self._vector(spec.bias)
        return self._native.Projection(self._matrix(spec.matrix), bias)

    def _norm(self, spec: NormSpec) -> Any:
        weight = -1 if spec.weight is None else self._vector(spec.weight)
        return self._native.Norm(weight, spec.eps, 1.0 if spec.add_one else 0.0)

    def _rope(self, spec: RopeSpec | None) -> int:
        if spec is None:
            return -1
        if spec not in self._ropes:
            cos, sin = rope_table(spec, self._max_position)
            self._ropes[spec] = self._model.add_rope(cos, sin, spec.style == "interleaved")
        return self._ropes[spec]

    def _weight_bytes(self) -> int:
        """Size of the arena: every matrix, vector and rope table, each rounded up to 64 bytes."""
        plan = self._plan
        matrices, vectors, ropes = {plan.embed}, set(), set()
        projections, norms = [plan.head], [plan.tail_norm]
        for record in plan.records:
            for value in (getattr(record, name) for name in record.__slots__):
                if isinstance(value, ProjectionSpec):
                    projections.append(value)
                elif isinstance(value, NormSpec):
                    norms.append(value)
                elif isinstance(value, RopeSpec):
                    ropes.add(value)
        matrices |= {p.matrix for p in projections}
        vectors |= {(p.bias, p.matrix.rows) for p in projections if p.bias is not None}
        widest = max(m.k for m in matrices)
        vectors |= {(n.weight, widest) for n in norms if n.weight is not None}
        total = sum(self._arena_bytes(m) for m in matrices)
        total += sum(4 * width + 64 for _, width in vectors)
        total += sum(2 * (self._max_position * spec.dim // 2 * 4 + 64) for spec in ropes)
        return total

    def _arena_bytes(self, spec: MatrixSpec) -> int:
        type_id = self._storage(spec).type_id
        try:
            return int(self._native.arena_bytes(type_id, spec.rows, spec.k, spec.group_rows))
        except ValueError as error:
            raise UnsupportedModelError(f"tensor {spec.tensor}: {error}") from None


def rope_table(spec: RopeSpec, num_positions: int) -> tuple[F32, F32]:
    """cos and sin [num_positions, dim / 2], taken in float64, attention factor applied."""
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * np.asarray(spec.inv_freq)
    cos = np.cos(angles) * spec.attention_factor
    sin = np.sin(angles) * spec.attention_factor
    return cos.astype(np.float32), sin.astype(np.float32)


def _usable_cpus() -> int:
    """CPUs the pool may really run on: with more threads than these it does not spin."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
