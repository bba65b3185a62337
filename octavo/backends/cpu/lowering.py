"""Graph -> plan: recognizes what the native executor fuses. Pure; reads no weights.

A graph is lowered whole or refused with UnsupportedModelError naming the op: such models run on the
reference backend.
"""

import dataclasses
from collections.abc import Iterator
from typing import NoReturn, TypeVar

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
from octavo.errors import UnsupportedModelError
from octavo.graph import ops
from octavo.graph.graph import Graph
from octavo.graph.ops import KVStoreSpec, Op, RopeSpec, ValueId, WeightRef

OpT = TypeVar("OpT", bound=Op)
# K tiles hold up to four elements of a head in four bytes.
_HEAD_DIM_UNIT = 4


def lower(graph: Graph) -> PlanSpec:
    """The plan of a whole graph. Raises UnsupportedModelError."""
    return _Lowering(graph).plan()


def _refuse(op: Op | None, why: str) -> NoReturn:
    name = "the end of the graph" if op is None else f"op {type(op).__name__}"
    raise UnsupportedModelError(
        f"the cpu backend cannot run {name}: {why}; use the reference backend", param="backend"
    )


@dataclasses.dataclass(slots=True)
class _Head:
    """What happens to Q or K between its projection and attention."""

    norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    rope: RopeSpec | None = None


@dataclasses.dataclass(slots=True)
class _Lowering:
    """Walks the ops in order; `stream` is the residual stream's current value."""

    graph: Graph
    stream: ValueId = -1
    records: list[Record] = dataclasses.field(default_factory=list)
    _ops: list[Op] = dataclasses.field(default_factory=list)
    _at: int = 0
    _same: dict[ValueId, ValueId] = dataclasses.field(default_factory=dict)

    def plan(self) -> PlanSpec:
        self._ops = list(self._working_ops())
        embed = self._take(ops.Embed, "expected the embedding first")
        self.stream = embed.out
        table = self._matrix(embed.table, embed, group_rows=None)
        while not isinstance(self._peek(), ops.SelectRows):
            self._block()
        norm, head, scale = self._tail()
        return PlanSpec(
            embed=table, embed_scale=embed.scale, records=tuple(self.records), tail_norm=norm,
            head=head, logit_scale=scale,
        )  # fmt: skip

    def _working_ops(self) -> Iterator[Op]:
        """All ops but those that compute nothing on one device."""
        for section in self.graph.sections:
            for op in section.ops:
                if isinstance(op, ops.Collective):
                    self._same[op.out] = op.x
                elif not isinstance(op, ops.Tap):
                    yield op

    def _peek(self) -> Op | None:
        return self._ops[self._at] if self._at < len(self._ops) else None

    def _take(self, kind: type[OpT], why: str) -> OpT:
        op = self._peek()
        if not isinstance(op, kind):
            _refuse(op, why)
        self._at += 1
        return op

    def _id(self, value: ValueId) -> ValueId:
        while value in self._same:
            value = self._same[value]
        return value

    def _width(self, value: ValueId) -> int:
        return self.graph.values[value].width

    def _block(self) -> None:
        """One pre-norm block: attention or gated MLP, and its residual add."""
        norm, x = self._norm()
        linears = self._linears(x)
        if isinstance(self._peek(), ops.Glu):
            out = self._glu(norm, linears)
            source = "glu"
        else:
            out = self._attention(norm, linears)
            source = "attention"
        linear = self._take(ops.Linear, "expected the block's output projection")
        if self._id(linear.x) != out:
            _refuse(linear, "it does not read the block's result")
        if len(linear.outs) != 1:
            _refuse(linear, "an output projection has one part")
        projection = self._projections(linear, group_rows=None)[0]
        add = self._take(ops.Add, "expected the residual add")
        x_id, y_id = self._id(add.x), self._id(add.y)
        if add.scale == 1.0 and y_id == self.stream:
            x_id, y_id = y_id, x_id
        if x_id != self.stream or y_id != linear.outs[0]:
            _refuse(add, "expected residual stream + projection")
        self.records.append(
            AddLinearRecord(
                linear=projection,
                source="glu" if source == "glu" else "attention",
                scale=add.scale,
            )
        )
        self.stream = add.out

    def _norm(self) -> tuple[NormSpec, ValueId]:
        """The norm of the stream, if there is one, and the value that the next linears read."""
        op = self._peek()
        if not isinstance(op, ops.Norm):
            return NormSpec(), self.stream
        self._at += 1
        if self._id(op.x) != self.stream:
            _refuse(op, "it does not read the residual stream")
        return self._rms(op, self._width(op.x)), op.out

    def _rms(self, op: ops.Norm, width: int) -> NormSpec:
        if op.kind != "rms" or op.bias is not None:
            _refuse(op, "only RMS norms without bias are native")
        if op.width != width:
            _refuse(op, f"its width is {op.width}, expected {width}")
        return NormSpec(weight=_tensor(op.weight, op), eps=op.eps, add_one=op.add_one)

    def _linears(self, x: ValueId) -> list[ops.Linear]:
        """The run of linears that read x."""
        found = []
        while isinstance(op := self._peek(), ops.Linear) and self._id(op.x) == x:
            found.append(op)
            self._at += 1
        if not found:
            _refuse(self._peek(), "expected a projection of the normed stream")
        return found

    def _projections(self, op: ops.Linear, group_rows: int | None) -> list[ProjectionSpec]:
        """One a part."""
        if op.experts is not None:
            _refuse(op, "expert weights are not native")
        biases: list[str | None] = [None] * len(op.weight.parts)
        if op.bias is not None:
            rows = [part.rows for part in op.bias.parts]
            if rows != [part.rows for part in op.weight.parts]:
                _refuse(op, "its bias has other parts than its weight")
            biases = [part.tensor for part in op.bias.parts]
        return [
            ProjectionSpec(
                matrix=MatrixSpec(
                    tensor=part.tensor, rows=part.rows, k=op.weight.shape[1],
                    group_rows=group_rows or part.rows,
                ),
                bias=bias,
            )
            for part, bias in zip(op.weight.parts, biases, strict=True)
        ]  # fmt: skip

    def _by_value(
        self, linears: list[ops.Linear], group_rows: int | None
    ) -> dict[ValueId, ProjectionSpec]:
        return {
            out: projection
            for op in linears
            for out, projection in zip(op.outs, self._projections(op, group_rows), strict=True)
        }

    def _glu(self, norm: NormSpec, linears: list[ops.Linear]) -> ValueId:
        op = self._take(ops.Glu, "expected the gate")
        parts = self._by_value(linears, None)
        gate, up = self._id(op.gate), self._id(op.up)
        if op.act != "silu":
            _refuse(op, f"activation {op.act} is not native")
        if len(parts) != 2 or {gate, up} != set(parts):
            _refuse(op, "expected gate and up projections only")
        self.records.append(GluRecord(norm=norm, gate=parts[gate], up=parts[up]))
        return op.out

    def _attention(self, norm: NormSpec, linears: list[ops.Linear]) -> ValueId:
        origin = {out: out for op in linears for out in op.outs}
        heads = {out: _Head() for out in origin}
        write: ops.KvWrite | None = None
        while not isinstance(op := self._peek(), ops.Attention):
            self._at += 1
            if isinstance(op, ops.KvWrite) and write is None:
                write = op
            elif isinstance(op, ops.Norm | ops.Rope) and self._id(op.x) in origin:
                self._head_op(op, heads[origin[self._id(op.x)]], used=write is not None)
                origin[op.out] = origin[self._id(op.x)]
            else:
                _refuse(op, "it has no place between projection and attention")
        self._at += 1
        if write is None or write.store != op.store:
            _refuse(op, "it does not read the store its own K and V go to")
        store = self.graph.kv_stores[op.store]
        _check_attention(op, store)
        values = (op.q, write.k, write.v)
        q, k, v = (origin.get(self._id(value), -1) for value in values)
        parts = self._by_value(linears, store.k_dim)
        if {q, k, v} != set(parts) or len(parts) != 3:
            _refuse(op, "expected one projection each for Q, K and V")
        if heads[v] != _Head():
            _refuse(op, "V must come straight from its projection")
        self.records.append(
            QkvRecord(
                norm=norm, q=parts[q], k=parts[k], v=parts[v], q_norm=heads[q].norm,
                k_norm=heads[k].norm, q_rope=heads[q].rope, k_rope=heads[k].rope, store=op.store,
            )
        )  # fmt: skip
        self.records.append(
            AttentionRecord(
                store=op.store, num_heads=op.num_heads, window=op.window, scale=op.scale,
                softcap=op.softcap,
            )
        )  # fmt: skip
        return op.out

    def _head_op(self, op: ops.Norm | ops.Rope, head: _Head, *, used: bool) -> None:
        if isinstance(op, ops.Rope):
            if head.rope is not None:
                _refuse(op, "a head turns once")
            head.rope = op.spec
            return
        if head.rope is not None or head.norm.weight is not None or used:
            _refuse(op, "a head's norm comes once, before rope and KV write")
        head.norm = self._rms(op, op.width)

    def _tail(self) -> tuple[NormSpec, ProjectionSpec, float]:
        select = self._take(ops.SelectRows, "expected the rows that need logits")
        if self._id(select.x) != self.stream:
            _refuse(select, "it does not read the residual stream")
        self.stream = select.out
        norm, x = self._norm()
        linear = self._take(ops.Linear, "expected the head")
        if self._id(linear.x) != x or len(linear.outs) != 1:
            _refuse(linear, "expected one head over the selected rows")
        head = self._projections(linear, group_rows=None)[0]
        out, scale = linear.outs[0], 1.0
        if isinstance(op := self._peek(), ops.Map):
            self._at += 1
            if op.kind != "scale" or self._id(op.x) != out:
                _refuse(op, f"map {op.kind} is not native")
            out, scale = op.out, op.value
        if self._id(self.graph.logits) != out:
            _refuse(linear, "its result is not the graph's logits")
        if self._peek() is not None:
            sample = self._take(ops.Sample, "expected sampling last")
            if self._id(sample.logits) != out:
                _refuse(sample, "it does not read the logits")
        if self._peek() is not None:
            _refuse(self._peek(), "nothing may follow sampling")
        return norm, head, scale

    def _matrix(self, weight: WeightRef, op: Op, group_rows: int | None) -> MatrixSpec:
        rows, k = weight.shape
        return MatrixSpec(_tensor(weight, op), rows, k, group_rows or rows)


def _tensor(weight: WeightRef, op: Op) -> str:
    if len(weight.parts) != 1:
        _refuse(op, f"weight {weight.name} has {len(weight.parts)} parts")
    return weight.parts[0].tensor


def _check_attention(op: ops.Attention, store: KVStoreSpec) -> None:
    if not op.causal:
        _refuse(op, "only causal attention is native")
    if op.sinks is not None:
        _refuse(op, "attention sinks are not native")
    if store.kind not in ("full", "window") or store.k_dim != store.v_dim:
        _refuse(op, f"KV store of kind {store.kind}, K {store.k_dim} and V {store.v_dim} wide")
    if store.k_dim % _HEAD_DIM_UNIT:
        _refuse(op, f"head size {store.k_dim} is not a multiple of {_HEAD_DIM_UNIT}")
    if op.num_heads % store.num_kv_heads:
        _refuse(op, f"{op.num_heads} query heads do not divide by {store.num_kv_heads} KV heads")
