"""The recorder infers shapes and live values, and refuses graphs that make no sense."""

import dataclasses

import pytest

from octavo.graph import ops
from octavo.graph.ops import KVStoreSpec, RopeSpec
from octavo.graph.recorder import Recorder, matrix, vector
from octavo.graph.validate import validate
from octavo.testing.toy_model import ToyShape, tiny_llama, toy_graph

TABLE = matrix("embed", [("embed", 10, "embed")], in_features=8)


def recorder() -> Recorder:
    return Recorder("test", vocab_size=10, hidden_size=8)


def square(name: str, rows: int = 8, columns: int = 8) -> ops.WeightRef:
    return matrix(name, [(name, rows, name)], in_features=columns)


def test_sections_know_what_lives_across_them() -> None:
    graph = tiny_llama(num_layers=3).graph
    assert [s.name for s in graph.sections] == ["prologue", "layer.0", "layer.1", "layer.2", "tail"]
    assert [s.kind for s in graph.sections] == ["prologue", "layer", "layer", "layer", "tail"]
    for before, after in zip(graph.sections, graph.sections[1:]):
        assert len(after.live_in) == 1 and after.live_in == before.live_out
    assert graph.sections[0].live_in == () == graph.sections[-1].live_out


def test_marks_stand_behind_the_residual_stream() -> None:
    graph = tiny_llama().graph
    for section in graph.sections[1:-1]:
        assert list(section.marks) == ["after_attention", "after_mlp"]
        assert all(isinstance(section.ops[at], ops.Add) for at in section.marks.values())
        last = section.ops[section.marks["after_mlp"]]
        assert isinstance(last, ops.Add) and section.live_out == (last.out,)


def test_a_value_may_skip_a_section() -> None:
    rec = recorder()
    with rec.section("prologue", kind="prologue"):
        x = rec.embed(TABLE)
        y = rec.map(x, "silu")
    with rec.section("layer.0", kind="layer"):
        y = rec.add(y, y)
    with rec.section("tail", kind="tail"):
        rows = rec.select_rows(rec.add(x, y), index="logits_indices")
        (logits,) = rec.linear(rows, TABLE)
    graph = rec.finish(logits)
    assert graph.sections[0].live_out == (0, 1)
    assert graph.sections[1].live_in == (1,)
    assert graph.sections[2].live_in == (0, 2)


def test_fused_parts_become_one_output_each() -> None:
    rec = recorder()
    with rec.section("prologue", kind="prologue"):
        x = rec.embed(TABLE)
        weight = matrix("ab", [("a", 6, "a"), ("b", 2, "b")], in_features=8)
        assert [y.width for y in rec.linear(x, weight)] == [6, 2]


def record_bad(name: str) -> None:
    """Each branch makes one mistake."""
    rec = recorder()
    with rec.section("prologue", kind="prologue"):
        x = rec.embed(TABLE)
        half = rec.linear(x, square("half", rows=4))[0]
        store = rec.kv_store(
            KVStoreSpec(
                name="s", group=0, kind="window", num_kv_heads=2, k_dim=4, v_dim=4, window=5
            )
        )
        match name:
            case "add shapes":
                rec.add(x, half)
            case "linear width":
                rec.linear(half, square("w"))
            case "norm width":
                rec.norm(x, vector("n", 3), eps=1e-5)
            case "rope dim":
                rec.rope(x, RopeSpec(dim=6, style="neox", inv_freq=(1.0,) * 3), head_dim=4)
            case "rope frequencies":
                rec.rope(x, RopeSpec(dim=4, style="neox", inv_freq=(1.0,)), head_dim=4)
            case "kv width":
                rec.kv_write(half, x, store=store)
            case "query heads":
                rec.attention(x, store=store, num_heads=3, scale=1.0, window=5)
            case "window beyond the store":
                rec.attention(x, store=store, num_heads=2, scale=1.0)
            case "experts on T rows":
                rec.linear(x, square("w"), experts=2)
            case "embedding width":
                rec.embed(square("other", rows=11))
            case "sampling T rows":
                rec.sample(x)
            case "top_k":
                rec.route(x, top_k=9, score="softmax", renorm=False)
            case "bias size":
                rec.linear(x, square("w"), bias=vector("b", 7))
            case "store twice":
                rec.kv_store(
                    KVStoreSpec(name="s", group=0, kind="full", num_kv_heads=1, k_dim=4, v_dim=4)
                )
            case "nested section":
                with rec.section("inner", kind="layer"):
                    pass
    match name:
        case "op outside a section":
            rec.map(x, "silu")
        case "read before write":
            with rec.section("layer.0", kind="layer"):
                rec.attention(x, store="s", num_heads=2, scale=1.0, window=5)
            with rec.section("tail", kind="tail"):
                logits = rec.linear(rec.select_rows(x, index="logits_indices"), TABLE)[0]
            rec.finish(logits)
        case "logits in T rows":
            rec.finish(rec._values[0])


@pytest.mark.parametrize(
    "name",
    ["add shapes", "linear width", "norm width", "rope dim", "rope frequencies", "kv width",
     "query heads", "window beyond the store", "experts on T rows", "embedding width",
     "sampling T rows", "top_k", "bias size", "store twice", "nested section",
     "op outside a section", "read before write", "logits in T rows"],
)  # fmt: skip
def test_nonsense_is_refused(name: str) -> None:
    record_bad("nothing wrong")
    with pytest.raises(AssertionError):
        record_bad(name)


def test_experts_may_not_mix_routes() -> None:
    rec = recorder()
    with rec.section("prologue", kind="prologue"):
        x = rec.embed(TABLE)
        one = rec.route(x, top_k=2, score="softmax", renorm=True)
        two = rec.route(x, top_k=2, score="sigmoid", renorm=True)
        y = rec.combine(rec.gather(x, one), two)
    with rec.section("tail", kind="tail"):
        (logits,) = rec.linear(rec.select_rows(y, index="logits_indices"), TABLE)
    with pytest.raises(AssertionError, match="routes"):
        rec.finish(logits)


def test_validation_sees_a_changed_graph() -> None:
    graph = toy_graph(ToyShape())
    validate(graph)
    with pytest.raises(AssertionError):
        validate(dataclasses.replace(graph, sections=graph.sections[::-1]))
    with pytest.raises(AssertionError):
        validate(dataclasses.replace(graph, sections=graph.sections[1:]))
    wrong = dataclasses.replace(graph.sections[1], live_out=())
    with pytest.raises(AssertionError):
        sections = (graph.sections[0], wrong, *graph.sections[2:])
        validate(dataclasses.replace(graph, sections=sections))
