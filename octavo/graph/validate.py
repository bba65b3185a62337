"""Checks of a graph: every op against the shapes it names, every section against its live values.

Assertions only, because a bad graph is a bug of a model file of ours, never the user's mistake.
Knows no backend and no weights' contents.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from octavo.graph import ops
from octavo.graph.graph import Graph, Value

Values = Sequence[Value]
Stores = Mapping[str, ops.KVStoreSpec]


def inputs_of(op: ops.Op) -> tuple[ops.ValueId, ...]:
    """Value ids an op reads, in the order of its fields."""
    match op:
        case ops.Input() | ops.Embed():
            return ()
        case ops.Concat():
            return op.inputs
        case ops.Add():
            return (op.x, op.y)
        case ops.Glu():
            return (op.gate, op.up)
        case ops.KvWrite():
            return (op.k, op.v)
        case ops.Attention():
            return (op.q,)
        case ops.Gather() | ops.Combine():
            return (op.x, op.pairs)
        case ops.Sample():
            return (op.logits,)
        case _:
            return (op.x,)


def outputs_of(op: ops.Op) -> tuple[ops.ValueId, ...]:
    """Value ids an op defines."""
    match op:
        case ops.Tap() | ops.KvWrite() | ops.Sample():
            return ()
        case ops.Linear():
            return op.outs
        case _:
            return (op.out,)


def live_values(
    sections: Sequence[Sequence[ops.Op]],
) -> list[tuple[tuple[ops.ValueId, ...], tuple[ops.ValueId, ...]]]:
    """(live-in, live-out) of each section: what it reads of earlier ones, what later ones read.

    Both in the order of first reading or of definition.
    """
    defined = [{v for op in section for v in outputs_of(op)} for section in sections]
    live_ins = []
    for section, own in zip(sections, defined, strict=True):
        read = dict.fromkeys(v for op in section for v in inputs_of(op))
        live_ins.append(tuple(v for v in read if v not in own))
    result = []
    for index, section in enumerate(sections):
        later = {v for live_in in live_ins[index + 1 :] for v in live_in}
        outs = tuple(v for op in section for v in outputs_of(op) if v in later)
        result.append((live_ins[index], outs))
    return result


def pair_sources(all_ops: Iterable[ops.Op]) -> dict[ops.ValueId, ops.ValueId]:
    """For every value in P rows: the `Route` output whose pairs its rows belong to."""
    sources: dict[ops.ValueId, ops.ValueId] = {}
    for op in all_ops:
        match op:
            case ops.Route():
                sources[op.out] = op.out
            case ops.Gather():
                assert op.pairs in sources, "gather of rows that no route opened"
                sources[op.out] = sources[op.pairs]
            case ops.Combine():
                assert sources[op.x] == sources[op.pairs], "combine mixes two routes"
            case _:
                found = {sources[v] for v in inputs_of(op) if v in sources}
                assert len(found) <= 1, f"{type(op).__name__} mixes rows of two routes"
                for source in found:
                    sources.update(dict.fromkeys(outputs_of(op), source))
    return sources


def validate(graph: Graph) -> None:
    """AssertionError naming section and op on the first thing that is wrong."""
    defined: set[ops.ValueId] = set()
    written: set[str] = set()
    taps: set[str] = set()
    names = [section.name for section in graph.sections]
    assert len(set(names)) == len(names), f"two sections of one name: {names}"
    assert [value.id for value in graph.values] == list(range(len(graph.values)))
    for section in graph.sections:
        assert all(0 <= at < len(section.ops) for at in section.marks.values()), section.name
        for op in section.ops:
            where = f"{section.name}: {type(op).__name__}"
            assert defined.issuperset(inputs_of(op)), f"{where} reads a value before it is defined"
            assert defined.isdisjoint(outputs_of(op)), f"{where} defines a value again"
            defined.update(outputs_of(op))
            check_op(op, graph.values, graph.kv_stores, graph.vocab_size)
            if isinstance(op, ops.KvWrite):
                assert op.store not in written, f"{where}: {op.store} is written twice"
                written.add(op.store)
            elif isinstance(op, ops.Attention):
                assert op.store in written, f"{where} reads {op.store} before it is written"
            elif isinstance(op, ops.Tap):
                assert op.name not in taps, f"{where}: two taps named {op.name}"
                taps.add(op.name)
    assert len(defined) == len(graph.values), "a value that no op defines"
    assert written == graph.kv_stores.keys(), "a KV store that no op writes"
    live = live_values([section.ops for section in graph.sections])
    assert live == [(s.live_in, s.live_out) for s in graph.sections], "wrong live values"
    pair_sources(op for section in graph.sections for op in section.ops)
    logits = graph.values[graph.logits]
    assert (logits.rows, logits.width) == ("R", graph.vocab_size), logits


def check_op(op: ops.Op, values: Values, stores: Stores, vocab_size: int) -> None:
    """AssertionError when widths, row spaces or weight shapes of `op` do not fit."""
    check = _CHECKS.get(type(op))
    if check is not None:
        check(op, values, stores)
    if isinstance(op, ops.Embed):
        assert op.table.shape[0] == vocab_size, op
    elif isinstance(op, ops.Sample):
        logits = values[op.logits]
        assert (logits.rows, logits.width) == ("R", vocab_size), op


def _same(values: Values, *ids: ops.ValueId) -> None:
    shapes = {(values[i].rows, values[i].width) for i in ids}
    assert len(shapes) == 1, f"values {ids} differ in shape: {sorted(shapes)}"


def _check_weight(weight: ops.WeightRef, shape: tuple[int, ...]) -> None:
    assert weight.shape == shape, f"{weight.name} is {weight.shape}, expected {shape}"
    assert sum(part.rows for part in weight.parts) == shape[0], f"parts of {weight.name}"
    assert weight.shard is None or all(p.rows % weight.shard_unit == 0 for p in weight.parts)


def _embed(op: ops.Embed, values: Values, stores: Stores) -> None:
    out = values[op.out]
    assert out.rows == "T", op
    _check_weight(op.table, (op.table.shape[0], out.width))


def _concat(op: ops.Concat, values: Values, stores: Stores) -> None:
    out = values[op.out]
    assert op.inputs and out.width == sum(values[i].width for i in op.inputs), op
    assert {values[i].rows for i in op.inputs} == {out.rows}, op


def _select_rows(op: ops.SelectRows, values: Values, stores: Stores) -> None:
    assert op.index == "logits_indices", op
    assert values[op.x].rows == "T" and values[op.out].rows == "R", op
    assert values[op.x].width == values[op.out].width, op


def _pool(op: ops.Pool, values: Values, stores: Stores) -> None:
    assert values[op.x].rows == "T" and values[op.out].rows == "S", op
    assert values[op.x].width == values[op.out].width, op


def _norm(op: ops.Norm, values: Values, stores: Stores) -> None:
    _same(values, op.x, op.out)
    assert op.width > 0 and values[op.x].width % op.width == 0, op
    assert op.eps > 0, op
    _check_weight(op.weight, (op.width,))
    if op.bias is not None:
        _check_weight(op.bias, (op.width,))


def _add(op: ops.Add, values: Values, stores: Stores) -> None:
    _same(values, op.x, op.y, op.out)


def _map(op: ops.Map, values: Values, stores: Stores) -> None:
    _same(values, op.x, op.out)
    assert op.kind != "softcap" or op.value > 0, op


def _glu(op: ops.Glu, values: Values, stores: Stores) -> None:
    _same(values, op.gate, op.up, op.out)


def _linear(op: ops.Linear, values: Values, stores: Stores) -> None:
    x, outs, experts = values[op.x], [values[i] for i in op.outs], op.experts or 1
    assert (op.experts is None) == (x.rows != "P"), f"experts and P rows go together: {op}"
    assert len(outs) == len(op.weight.parts), op
    for part, out in zip(op.weight.parts, outs, strict=True):
        assert out.rows == x.rows and part.rows == experts * out.width, (part, out)
    rows = experts * sum(out.width for out in outs)
    _check_weight(op.weight, (rows, x.width))
    if op.bias is not None:
        _check_weight(op.bias, (rows,))
        assert [p.rows for p in op.bias.parts] == [p.rows for p in op.weight.parts], op


def _rope(op: ops.Rope, values: Values, stores: Stores) -> None:
    _same(values, op.x, op.out)
    spec = op.spec
    assert values[op.x].rows == "T" and values[op.x].width % op.head_dim == 0, op
    assert spec.dim % 2 == 0 and 0 < spec.dim <= op.head_dim, op
    assert len(spec.inv_freq) == spec.dim // 2, op


def _kv_write(op: ops.KvWrite, values: Values, stores: Stores) -> None:
    k, v, store = values[op.k], values[op.v], stores[op.store]
    assert k.rows == v.rows == "T", op
    assert k.width == store.num_kv_heads * store.k_dim, op
    assert v.width == store.num_kv_heads * store.v_dim, op


def _attention(op: ops.Attention, values: Values, stores: Stores) -> None:
    q, out, store = values[op.q], values[op.out], stores[op.store]
    assert q.rows == out.rows == "T" and op.num_heads % store.num_kv_heads == 0, op
    assert q.width == op.num_heads * store.k_dim and out.width == op.num_heads * store.v_dim, op
    assert op.softcap is None or op.softcap > 0, op
    assert op.window is None or op.window > 0, op
    # A store of kind "window" may drop what its window has left behind.
    assert store.window is None or (op.window is not None and op.window <= store.window), op
    if op.sinks is not None:
        _check_weight(op.sinks, (op.num_heads,))


def _route(op: ops.Route, values: Values, stores: Stores) -> None:
    x, out = values[op.x], values[op.out]
    assert x.rows == "T" and (out.rows, out.width) == ("P", 1), op
    assert 0 < op.top_k <= x.width, op
    if op.bias is not None:
        _check_weight(op.bias, (x.width,))
    if op.groups is not None:
        count, kept = op.groups
        assert x.width % count == 0 and 0 < kept <= count, op
        assert op.top_k <= kept * (x.width // count), op


def _gather(op: ops.Gather, values: Values, stores: Stores) -> None:
    assert values[op.x].rows == "T" and values[op.out].rows == "P", op
    assert values[op.pairs].rows == "P" and values[op.x].width == values[op.out].width, op


def _combine(op: ops.Combine, values: Values, stores: Stores) -> None:
    assert values[op.x].rows == "P" and values[op.out].rows == "T", op
    pairs = values[op.pairs]
    assert (pairs.rows, pairs.width) == ("P", 1), op
    assert values[op.x].width == values[op.out].width, op


def _collective(op: ops.Collective, values: Values, stores: Stores) -> None:
    assert values[op.x].rows == values[op.out].rows, op


_CHECKS: dict[type, Callable[..., None]] = {
    ops.Embed: _embed,
    ops.Concat: _concat,
    ops.SelectRows: _select_rows,
    ops.Pool: _pool,
    ops.Norm: _norm,
    ops.Add: _add,
    ops.Map: _map,
    ops.Glu: _glu,
    ops.Linear: _linear,
    ops.Rope: _rope,
    ops.KvWrite: _kv_write,
    ops.Attention: _attention,
    ops.Route: _route,
    ops.Gather: _gather,
    ops.Combine: _combine,
    ops.Collective: _collective,
}
