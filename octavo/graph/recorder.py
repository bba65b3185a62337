"""Recorder: how a model file writes its graph down, one method an op.

Infers output shapes, checks every op as it is recorded and the whole graph at the end. Knows no
backend, no file and no weights' contents.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

from octavo.graph import ops
from octavo.graph.graph import Graph, Section, SectionKind, Value
from octavo.graph.ops import KVStoreSpec, Op, Part, RopeSpec, RowSpace, ShardAxis, WeightRef
from octavo.graph.validate import check_op, live_values, validate


class Recorder:
    """Records one graph.

        rec = Recorder("name", vocab_size=..., hidden_size=...)
        with rec.section("prologue", kind="prologue"):
            x = rec.embed(table)
        ...
        graph = rec.finish(logits)

    Ops are recorded inside a section; outside of one, and on shapes that do not fit, methods raise
    AssertionError.
    """

    def __init__(self, name: str, *, vocab_size: int, hidden_size: int) -> None:
        self._name = name
        self._vocab_size = vocab_size
        self._hidden_size = hidden_size
        self._values: list[Value] = []
        self._stores: dict[str, KVStoreSpec] = {}
        self._sections: list[_OpenSection] = []
        self._inside = False

    @contextlib.contextmanager
    def section(self, name: str, *, kind: SectionKind) -> Iterator[None]:
        """The ops recorded inside make up the section. Sections do not nest."""
        assert not self._inside, "sections do not nest"
        self._inside = True
        self._sections.append(_OpenSection(name=name, kind=kind))
        yield
        self._inside = False

    def mark(self, name: str) -> None:
        """Names the place behind the last op of the section being recorded."""
        section = self._open_section()
        assert section.ops and name not in section.marks, name
        section.marks[name] = len(section.ops) - 1

    def kv_store(self, spec: KVStoreSpec) -> str:
        """Registers a KV store and returns its name."""
        assert spec.name not in self._stores, f"KV store {spec.name} is registered twice"
        self._stores[spec.name] = spec
        return spec.name

    def finish(self, logits: Value) -> Graph:
        """The validated graph; `logits` is [R, vocab_size]."""
        live = live_values([section.ops for section in self._sections])
        sections = tuple(
            Section(
                name=section.name,
                kind=section.kind,
                ops=tuple(section.ops),
                live_in=live_in,
                live_out=live_out,
                marks=section.marks,
            )
            for section, (live_in, live_out) in zip(self._sections, live, strict=True)
        )
        graph = Graph(
            name=self._name,
            vocab_size=self._vocab_size,
            hidden_size=self._hidden_size,
            values=tuple(self._values),
            sections=sections,
            kv_stores=self._stores,
            logits=logits.id,
        )
        validate(graph)
        return graph

    # --- in and out ---

    def input(self, name: str, width: int, *, rows: RowSpace = "T") -> Value:
        """A named input."""
        out = self._value(rows, width)
        self._emit(ops.Input(name=name, out=out.id))
        return out

    def embed(self, table: WeightRef, *, scale: float = 1.0) -> Value:
        """Rows of `table` by token id: [T, width]."""
        out = self._value("T", table.shape[1])
        self._emit(ops.Embed(table=table, scale=scale, out=out.id))
        return out

    def concat(self, inputs: Sequence[Value]) -> Value:
        """Inputs side by side."""
        out = self._value(inputs[0].rows, sum(x.width for x in inputs))
        self._emit(ops.Concat(inputs=tuple(x.id for x in inputs), out=out.id))
        return out

    def select_rows(self, x: Value, *, index: Literal["logits_indices"]) -> Value:
        """T rows to R rows."""
        out = self._value("R", x.width)
        self._emit(ops.SelectRows(x=x.id, index=index, out=out.id))
        return out

    def pool(self, x: Value, *, kind: Literal["last", "mean", "cls"], normalize: bool) -> Value:
        """T rows to one row a sequence."""
        out = self._value("S", x.width)
        self._emit(ops.Pool(x=x.id, kind=kind, normalize=normalize, out=out.id))
        return out

    def tap(self, x: Value, name: str) -> None:
        """Makes x available to whoever asks for `name`."""
        self._emit(ops.Tap(x=x.id, name=name))

    # --- arithmetic ---

    def norm(
        self,
        x: Value,
        weight: WeightRef,
        *,
        eps: float,
        kind: Literal["rms", "layer"] = "rms",
        bias: WeightRef | None = None,
        add_one: bool = False,
    ) -> Value:
        """Norm over groups of columns as wide as `weight` (head_dim: QK-norm)."""
        out = self._like(x)
        self._emit(
            ops.Norm(
                x=x.id, kind=kind, weight=weight, bias=bias, eps=eps, add_one=add_one,
                width=weight.shape[0], out=out.id,
            )
        )  # fmt: skip
        return out

    def add(self, x: Value, y: Value, *, scale: float = 1.0) -> Value:
        """x + y * scale."""
        out = self._like(x)
        self._emit(ops.Add(x=x.id, y=y.id, scale=scale, out=out.id))
        return out

    def map(
        self,
        x: Value,
        kind: Literal["gelu", "gelu_tanh", "silu", "softcap", "scale"],
        *,
        value: float = 1.0,
    ) -> Value:
        """An elementwise function."""
        out = self._like(x)
        self._emit(ops.Map(x=x.id, kind=kind, value=value, out=out.id))
        return out

    def glu(self, gate: Value, up: Value, *, act: Literal["silu", "gelu", "gelu_tanh"]) -> Value:
        """act(gate) * up."""
        out = self._like(up)
        self._emit(ops.Glu(gate=gate.id, up=up.id, act=act, out=out.id))
        return out

    def linear(
        self,
        x: Value,
        weight: WeightRef,
        *,
        bias: WeightRef | None = None,
        experts: int | None = None,
    ) -> tuple[Value, ...]:
        """One output for each part of the weight."""
        divisor = experts or 1
        assert all(part.rows % divisor == 0 for part in weight.parts), weight.name
        outs = tuple(self._value(x.rows, part.rows // divisor) for part in weight.parts)
        self._emit(
            ops.Linear(
                x=x.id, weight=weight, bias=bias, experts=experts, outs=tuple(o.id for o in outs)
            )
        )
        return outs

    # --- attention ---

    def rope(self, x: Value, spec: RopeSpec, *, head_dim: int) -> Value:
        """Rotary embedding of every head in x."""
        out = self._like(x)
        self._emit(ops.Rope(x=x.id, spec=spec, head_dim=head_dim, out=out.id))
        return out

    def kv_write(self, k: Value, v: Value, *, store: str) -> None:
        """Stores k and v."""
        self._emit(ops.KvWrite(k=k.id, v=v.id, store=store))

    def attention(
        self,
        q: Value,
        *,
        store: str,
        num_heads: int,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        sinks: WeightRef | None = None,
    ) -> Value:
        """Attention of q over `store`: [T, num_heads * v_dim]."""
        out = self._value("T", num_heads * self._stores[store].v_dim)
        self._emit(
            ops.Attention(
                q=q.id, store=store, num_heads=num_heads, scale=scale, causal=causal,
                window=window, softcap=softcap, sinks=sinks, out=out.id,
            )
        )  # fmt: skip
        return out

    # --- mixture of experts ---

    def route(
        self,
        x: Value,
        *,
        top_k: int,
        score: Literal["softmax", "sigmoid"],
        renorm: bool,
        bias: WeightRef | None = None,
        groups: tuple[int, int] | None = None,
    ) -> Value:
        """Router logits [T, E] to pairs: [P, 1] weights."""
        out = self._value("P", 1)
        self._emit(
            ops.Route(
                x=x.id, top_k=top_k, score=score, renorm=renorm, bias=bias, groups=groups,
                out=out.id,
            )
        )  # fmt: skip
        return out

    def gather(self, x: Value, pairs: Value) -> Value:
        """T rows to the P rows of `pairs`."""
        out = self._value("P", x.width)
        self._emit(ops.Gather(x=x.id, pairs=pairs.id, out=out.id))
        return out

    def combine(self, x: Value, pairs: Value) -> Value:
        """P rows back to T rows, weighted."""
        out = self._value("T", x.width)
        self._emit(ops.Combine(x=x.id, pairs=pairs.id, out=out.id))
        return out

    # --- the rest ---

    def collective(
        self, x: Value, kind: Literal["all_reduce", "all_gather"], *, group: str, width: int = 0
    ) -> Value:
        """A sum or a gathering over a parallel group; `width` of the result, 0 = that of x."""
        out = self._value(x.rows, width or x.width)
        self._emit(ops.Collective(x=x.id, kind=kind, group=group, out=out.id))
        return out

    def sample(self, logits: Value) -> None:
        """Draws a token for each row of logits."""
        self._emit(ops.Sample(logits=logits.id))

    def _value(self, rows: RowSpace, width: int) -> Value:
        value = Value(id=len(self._values), rows=rows, width=width)
        self._values.append(value)
        return value

    def _like(self, x: Value) -> Value:
        return self._value(x.rows, x.width)

    def _open_section(self) -> "_OpenSection":
        assert self._inside, "ops and marks are recorded inside a section"
        return self._sections[-1]

    def _emit(self, op: ops.Op) -> None:
        section = self._open_section()
        check_op(op, self._values, self._stores, self._vocab_size)
        section.ops.append(op)


def matrix(
    name: str,
    parts: Sequence[tuple[str, int, str]],
    *,
    in_features: int,
    shard: ShardAxis | None = None,
    shard_unit: int = 1,
) -> WeightRef:
    """A [sum of rows, in_features] weight of (tensor, rows, adapter target) parts."""
    all_parts = tuple(Part(tensor=t, rows=rows, target=target) for t, rows, target in parts)
    return WeightRef(
        name=name,
        shape=(sum(part.rows for part in all_parts), in_features),
        parts=all_parts,
        shard=shard,
        shard_unit=shard_unit,
    )


def vector(name: str, size: int) -> WeightRef:
    """A [size] weight of one tensor of that name."""
    return WeightRef(name=name, shape=(size,), parts=(Part(tensor=name, rows=size, target=""),))


@dataclasses.dataclass(slots=True)
class _OpenSection:
    """A section being recorded."""

    name: str
    kind: SectionKind
    ops: list[Op] = dataclasses.field(default_factory=list)
    marks: dict[str, int] = dataclasses.field(default_factory=dict)
