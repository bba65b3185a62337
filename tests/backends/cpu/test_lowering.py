"""Lowering: what a decoder becomes, and what is refused with the op's name."""

import dataclasses

import pytest

from octavo.backends.cpu.lowering import lower
from octavo.backends.cpu.plan import AddLinearRecord, AttentionRecord, GluRecord, QkvRecord
from octavo.errors import UnsupportedModelError
from octavo.graph import ops
from octavo.graph.graph import Graph
from octavo.graph.ops import Op
from octavo.testing.toy_model import ToyShape, tiny_llama, toy_graph


def test_a_layer_is_five_phases() -> None:
    plan = lower(tiny_llama(num_layers=3).graph)
    kinds = [QkvRecord, AttentionRecord, AddLinearRecord, GluRecord, AddLinearRecord]
    assert [type(record) for record in plan.records] == kinds * 3


def test_heads_are_packed_apart_and_a_tied_head_is_one_matrix() -> None:
    plan = lower(tiny_llama(tie_word_embeddings=True).graph)
    qkv = plan.records[0]
    assert isinstance(qkv, QkvRecord)
    assert qkv.q.matrix.group_rows == qkv.v.matrix.group_rows == 32
    assert plan.head.matrix == plan.embed


def changed(graph: Graph, op_type: type, fields: dict) -> Graph:
    """The graph with fields of every op of a kind replaced."""

    def change(op: Op) -> Op:
        return dataclasses.replace(op, **fields) if isinstance(op, op_type) else op

    sections = tuple(
        dataclasses.replace(section, ops=tuple(change(op) for op in section.ops))
        for section in graph.sections
    )
    return dataclasses.replace(graph, sections=sections)


REFUSED = {
    "layer norm": (ops.Norm, {"kind": "layer"}, "Norm"),
    "gelu": (ops.Glu, {"act": "gelu"}, "activation gelu"),
    "encoder": (ops.Attention, {"causal": False}, "causal"),
    "experts": (ops.Linear, {"experts": 4}, "expert"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_native_form_is_refused(case: str) -> None:
    kind, fields, message = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=message):
        lower(changed(tiny_llama().graph, kind, fields))


def test_the_toy_model_is_refused_by_the_op_that_does_not_fit() -> None:
    with pytest.raises(UnsupportedModelError, match="op Norm: only RMS norms"):
        lower(toy_graph(ToyShape()))
