"""Runs a graph op by op in NumPy float32.

Weights are dequantized at load; nothing is fused. A row's result does not depend on the rows that
share its step (`matmul.py`, `attention.py` say how far that goes). Knows no requests, no scheduler.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from octavo.backends.reference import functions
from octavo.backends.reference.attention import AttentionOptions, attend
from octavo.backends.reference.blas_threads import set_blas_threads
from octavo.backends.reference.functions import Pairs
from octavo.backends.reference.kv_cache import KVCache
from octavo.backends.reference.matmul import RowMatmul
from octavo.backends.reference.sampler import sample_rows
from octavo.backends.seam import KVOptions, WeightSource
from octavo.graph import ops
from octavo.graph.graph import Graph
from octavo.graph.ops import RopeSpec, ValueId, WeightRef
from octavo.graph.step_arrays import F32, StepArrays, StepLimits, StepOutputs
from octavo.graph.validate import inputs_of, pair_sources


class ReferenceBackend:
    """See seam.Backend. `num_threads` goes to BLAS, for the whole process."""

    name = "reference"

    def load(
        self,
        graph: Graph,
        weights: WeightSource,
        *,
        kv: KVOptions,
        limits: StepLimits,
        num_threads: int = 1,
    ) -> "ReferenceModel":
        """The graph with its weights in float32 and an empty KV cache."""
        assert limits.num_kv_groups >= graph.num_kv_groups, (limits, graph.num_kv_groups)
        threads = str(num_threads) if set_blas_threads(num_threads) else "those of BLAS"
        return ReferenceModel(graph, weights, kv, threads=threads)


class ReferenceModel:
    """See seam.LoadedModel.

    For tests and drafters: `inputs` feeds the graph's named inputs, and of `wanted_taps` each step
    leaves the values in `taps`.
    """

    def __init__(
        self, graph: Graph, weights: WeightSource, kv: KVOptions, *, threads: str
    ) -> None:
        self._threads = threads
        self.inputs: dict[str, F32] = {}
        self.wanted_taps: set[str] = set()
        self.taps: dict[str, F32] = {}
        self._graph = graph
        self._block_size = kv.block_size
        self._ops = tuple(chain.from_iterable(section.ops for section in graph.sections))
        self._dead_after = _last_uses(self._ops, keep=graph.logits)
        self._pair_sources = pair_sources(self._ops)
        self._weights = _Weights(self._ops, weights)
        self._caches = {
            name: KVCache(spec, num_slots=kv.num_blocks * kv.block_size, dtype=kv.dtype)
            for name, spec in graph.kv_stores.items()
        }

    def step(self, arrays: StepArrays, *, want_logits: bool = False) -> StepOutputs:
        """One pass over the step's rows, then sampling."""
        self.taps = {}
        run = _Run(self, arrays)
        logits = run.all_ops()
        sampled, logprob, rank, top_ids, top_logprobs = sample_rows(
            logits, arrays.sampling, arrays.num_rows
        )
        return StepOutputs(
            sampled, logprob, rank, top_ids, top_logprobs, logits if want_logits else None, 0
        )

    def copy_slots(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """See the seam."""
        for source, destination, count in copies:
            assert 0 <= count <= self._block_size
            for cache in self._caches.values():
                cache.copy(source * self._block_size, destination * self._block_size, count)

    def describe(self) -> Mapping[str, str]:
        """See the seam."""
        return {"isa": "numpy", "threads": self._threads, **self._weights.stored_as}

    def close(self) -> None:
        """See the seam."""
        self._caches = {}
        self._weights.clear()


class _Weights:
    """Every weight of a graph as float32; a tensor used by two ops is kept once."""

    def __init__(self, all_ops: Sequence[ops.Op], source: WeightSource) -> None:
        self.stored_as: dict[str, str] = {}
        self._arrays: dict[str, F32] = {}
        self._matmuls: dict[str, list[RowMatmul]] = {}
        for op in all_ops:
            for weight in _weights_of(op):
                if weight.name not in self._arrays:
                    self._arrays[weight.name] = self._load(weight, source)
            if isinstance(op, ops.Linear) and op.weight.name not in self._matmuls:
                self._matmuls[op.weight.name] = [
                    RowMatmul(matrix) for matrix in self._slices(op.weight, op.experts)
                ]

    def _load(self, weight: WeightRef, source: WeightSource) -> F32:
        parts = []
        for part in weight.parts:
            tensor = source.f32(part.tensor)
            assert tensor.size == part.rows * (weight.shape[1] if len(weight.shape) > 1 else 1), (
                part, tensor.shape,
            )  # fmt: skip
            parts.append(tensor.reshape(part.rows, *weight.shape[1:]))
            self.stored_as[part.tensor] = f"f32 (from {source.quant_of(part.tensor)})"
        # A copy: the source may hand out views of a file whose pages go at release.
        array = np.concatenate(parts).astype(np.float32, copy=False)
        for part in weight.parts:
            source.release(part.tensor)
        return array

    def _slices(self, weight: WeightRef, experts: int | None) -> Iterator[F32]:
        """The whole weight, or each expert's slices of all its parts."""
        array = self._arrays[weight.name]
        if experts is None:
            yield array
            return
        bounds = np.cumsum([part.rows for part in weight.parts])[:-1]
        parts = [part.reshape(experts, -1, part.shape[-1]) for part in np.split(array, bounds)]
        for expert in range(experts):
            yield np.concatenate([part[expert] for part in parts])

    def array(self, weight: WeightRef) -> F32:
        """[n] or [out, in]."""
        return self._arrays[weight.name]

    def optional(self, weight: WeightRef | None) -> F32 | None:
        """The array, None for no weight."""
        return None if weight is None else self._arrays[weight.name]

    def matmuls(self, weight: WeightRef) -> list[RowMatmul]:
        """One product, or one an expert."""
        return self._matmuls[weight.name]

    def clear(self) -> None:
        """Drops all."""
        self._arrays.clear()
        self._matmuls.clear()


class _Run:
    """One step: the values so far, and a method for each op."""

    def __init__(self, model: ReferenceModel, arrays: StepArrays) -> None:
        self._model = model
        self._weights = model._weights
        self._arrays = arrays
        self._values: dict[ValueId, F32] = {}
        self._pairs: dict[ValueId, Pairs] = {}
        self._rope_tables: dict[RopeSpec, tuple[F32, F32]] = {}

    def all_ops(self) -> F32:
        """Runs everything and returns the logits [R, vocab_size]."""
        # Routing scores of -inf and fully masked splits are meant; a NaN is not.
        with np.errstate(over="ignore", under="ignore"):
            for index, op in enumerate(self._model._ops):
                _OPS[type(op)](self, op)
                for value in self._model._dead_after[index]:
                    del self._values[value]
        return self._values[self._model._graph.logits]

    def input(self, op: ops.Input) -> None:
        self._values[op.out] = self._model.inputs[op.name]

    def embed(self, op: ops.Embed) -> None:
        token_ids = self._arrays.token_ids[: self._arrays.num_tokens]
        rows = self._weights.array(op.table)[token_ids]
        self._values[op.out] = rows if op.scale == 1.0 else rows * np.float32(op.scale)

    def concat(self, op: ops.Concat) -> None:
        self._values[op.out] = np.concatenate([self._values[i] for i in op.inputs], axis=1)

    def select_rows(self, op: ops.SelectRows) -> None:
        index = self._arrays.logits_indices[: self._arrays.num_rows]
        self._values[op.out] = self._values[op.x][index]

    def pool(self, op: ops.Pool) -> None:
        starts = self._arrays.query_start_loc[: self._arrays.num_seqs + 1]
        self._values[op.out] = functions.pool(
            self._values[op.x], starts, kind=op.kind, normalize=op.normalize
        )

    def tap(self, op: ops.Tap) -> None:
        if op.name in self._model.wanted_taps:
            self._model.taps[op.name] = self._values[op.x]

    def norm(self, op: ops.Norm) -> None:
        self._values[op.out] = functions.norm(
            self._values[op.x],
            self._weights.array(op.weight),
            kind=op.kind,
            bias=self._weights.optional(op.bias),
            eps=op.eps,
            add_one=op.add_one,
        )

    def add(self, op: ops.Add) -> None:
        y = self._values[op.y]
        self._values[op.out] = self._values[op.x] + (
            y if op.scale == 1.0 else y * np.float32(op.scale)
        )

    def map(self, op: ops.Map) -> None:
        self._values[op.out] = functions.elementwise(self._values[op.x], op.kind, op.value)

    def glu(self, op: ops.Glu) -> None:
        gate = functions.activation(self._values[op.gate], op.act)
        self._values[op.out] = gate * self._values[op.up]

    def linear(self, op: ops.Linear) -> None:
        x, matmuls = self._values[op.x], self._weights.matmuls(op.weight)
        bias = self._weights.optional(op.bias)
        widths = [part.rows // (op.experts or 1) for part in op.weight.parts]
        bounds = np.cumsum(widths)[:-1]
        if op.experts is None:
            y = matmuls[0](x)
            if bias is not None:
                y += bias
        else:
            y = self._by_expert(op, x, matmuls, bias)
        for out, part in zip(op.outs, np.split(y, bounds, axis=1), strict=True):
            self._values[out] = np.ascontiguousarray(part)

    def _by_expert(
        self, op: ops.Linear, x: F32, matmuls: list[RowMatmul], bias: F32 | None
    ) -> F32:
        experts = self._pairs[self._model._pair_sources[op.x]].experts
        y = np.empty((x.shape[0], op.weight.shape[0] // len(matmuls)), np.float32)
        biases = None if bias is None else self._expert_biases(op, bias)
        for expert in np.unique(experts):
            rows = np.flatnonzero(experts == expert)
            y[rows] = matmuls[expert](x[rows])
            if biases is not None:
                y[rows] += biases[expert]
        return y

    def _expert_biases(self, op: ops.Linear, bias: F32) -> F32:
        """[E, out] of a bias stacked like its weight: part by part, E slices each."""
        bounds = np.cumsum([part.rows for part in op.weight.parts])[:-1]
        parts = [part.reshape(op.experts or 1, -1) for part in np.split(bias, bounds)]
        return np.concatenate(parts, axis=1)

    def rope(self, op: ops.Rope) -> None:
        if op.spec not in self._rope_tables:
            positions = self._arrays.positions[: self._arrays.num_tokens]
            self._rope_tables[op.spec] = functions.rope_table(op.spec, positions)
        table = self._rope_tables[op.spec]
        self._values[op.out] = functions.rope(
            self._values[op.x], op.spec, head_dim=op.head_dim, table=table
        )

    def kv_write(self, op: ops.KvWrite) -> None:
        spec = self._model._graph.kv_stores[op.store]
        slots = self._arrays.slot_mapping[spec.group, : self._arrays.num_tokens]
        heads = (slots.size, spec.num_kv_heads, -1)
        self._model._caches[op.store].write(
            slots, self._values[op.k].reshape(heads), self._values[op.v].reshape(heads)
        )

    def attention(self, op: ops.Attention) -> None:
        arrays, spec = self._arrays, self._model._graph.kv_stores[op.store]
        q = self._values[op.q].reshape(-1, op.num_heads, spec.k_dim)
        options = AttentionOptions(
            num_heads=op.num_heads,
            scale=op.scale,
            causal=op.causal,
            window=op.window,
            softcap=op.softcap,
            sinks=self._weights.optional(op.sinks),
        )
        out = np.empty((q.shape[0], op.num_heads, spec.v_dim), np.float32)
        for seq in range(arrays.num_seqs):
            first, last = arrays.query_start_loc[seq : seq + 2]
            if first == last:
                continue
            out[first:last] = attend(
                q[first:last],
                self._model._caches[op.store],
                first_position=int(arrays.positions[first]),
                context_len=int(arrays.context_len[seq]),
                block_table=arrays.block_tables[spec.group, seq],
                block_size=self._model._block_size,
                options=options,
            )
        self._values[op.out] = out.reshape(q.shape[0], -1)

    def route(self, op: ops.Route) -> None:
        pairs = functions.route(self._values[op.x], op, self._weights.optional(op.bias))
        self._pairs[op.out] = pairs
        self._values[op.out] = pairs.weights[:, None]

    def gather(self, op: ops.Gather) -> None:
        pairs = self._pairs[self._model._pair_sources[op.pairs]]
        self._values[op.out] = self._values[op.x][pairs.tokens]

    def combine(self, op: ops.Combine) -> None:
        pairs = self._pairs[self._model._pair_sources[op.pairs]]
        self._values[op.out] = functions.combine(self._values[op.x], pairs)

    def collective(self, op: ops.Collective) -> None:
        self._values[op.out] = self._values[op.x]

    def sample(self, op: ops.Sample) -> None:
        """Sampling follows the last op (`ReferenceModel.step`)."""


_OPS: dict[type, Callable[..., None]] = {
    ops.Input: _Run.input,
    ops.Embed: _Run.embed,
    ops.Concat: _Run.concat,
    ops.SelectRows: _Run.select_rows,
    ops.Pool: _Run.pool,
    ops.Tap: _Run.tap,
    ops.Norm: _Run.norm,
    ops.Add: _Run.add,
    ops.Map: _Run.map,
    ops.Glu: _Run.glu,
    ops.Linear: _Run.linear,
    ops.Rope: _Run.rope,
    ops.KvWrite: _Run.kv_write,
    ops.Attention: _Run.attention,
    ops.Route: _Run.route,
    ops.Gather: _Run.gather,
    ops.Combine: _Run.combine,
    ops.Collective: _Run.collective,
    ops.Sample: _Run.sample,
}


def _weights_of(op: ops.Op) -> Iterator[WeightRef]:
    for name in ("table", "weight", "bias", "sinks"):
        weight = getattr(op, name, None)
        if weight is not None:
            yield weight


def _last_uses(all_ops: Sequence[ops.Op], *, keep: ValueId) -> list[list[ValueId]]:
    """For each op: the values nobody reads after it."""
    last: dict[ValueId, int] = {}
    for index, op in enumerate(all_ops):
        last.update((value, index) for value in inputs_of(op))
    dead: list[list[ValueId]] = [[] for _ in all_ops]
    for value, index in last.items():
        if value != keep:
            dead[index].append(value)
    return dead
