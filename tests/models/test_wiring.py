"""What the model files wire, beyond what the goldens compare."""

import dataclasses

import pytest

from octavo.errors import UnsupportedModelError
from octavo.graph import ops
from octavo.graph.graph import Graph
from octavo.models.registry import record, registry
from octavo.testing.toy_model import tiny_llama


def all_ops(graph: Graph, kind: type) -> list:
    return [op for section in graph.sections for op in section.ops if isinstance(op, kind)]


def test_registry_names_every_supported_architecture() -> None:
    assert set(registry) == {"llama", "mistral", "qwen2", "qwen3"}


def test_an_unknown_architecture_is_refused_by_name() -> None:
    config = dataclasses.replace(tiny_llama().config, architecture="mamba")
    with pytest.raises(UnsupportedModelError, match=r"mamba.*llama, mistral"):
        record(config, set())


def test_an_unknown_activation_is_refused_by_name() -> None:
    config = dataclasses.replace(tiny_llama().config, hidden_act="relu2")
    with pytest.raises(UnsupportedModelError, match="relu2"):
        record(config, set())


def test_a_tied_head_is_the_embedding() -> None:
    graph = tiny_llama(tie_word_embeddings=True).graph
    (embed,), head = all_ops(graph, ops.Embed), all_ops(graph, ops.Linear)[-1]
    assert head.weight == embed.table
    assert all_ops(tiny_llama().graph, ops.Linear)[-1].weight.name == "lm_head.weight"


def test_every_tensor_of_the_file_is_wired_once() -> None:
    tiny = tiny_llama()
    used = [
        part.tensor
        for section in tiny.graph.sections
        for op in section.ops
        for field in ("table", "weight", "bias")
        if getattr(op, field, None) is not None
        for part in getattr(op, field).parts
    ]
    assert sorted(used) == sorted(tiny.weights.names)


def test_a_window_reaches_attention_and_store() -> None:
    graph = tiny_llama(sliding_window=9).graph
    assert {op.window for op in all_ops(graph, ops.Attention)} == {9}
    assert {(s.kind, s.window, s.group) for s in graph.kv_stores.values()} == {("window", 9, 0)}
    assert graph.num_kv_groups == 1


def test_adapter_targets_have_their_names() -> None:
    graph = tiny_llama(num_layers=1).graph
    targets = [part.target for op in all_ops(graph, ops.Linear) for part in op.weight.parts]
    assert targets == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                       "down_proj", "lm_head"]  # fmt: skip


def test_biases_are_wired_where_the_file_has_them() -> None:
    tiny = tiny_llama(num_layers=1)
    names = {f"layers.0.self_attn.{part}_proj.bias" for part in "qkv"}
    with_bias = record(tiny.config, tiny.weights.names | names)
    biases = [op.bias for op in all_ops(with_bias, ops.Linear)]
    assert [bias is not None for bias in biases] == [True, False, False, False, False]
    with pytest.raises(AssertionError):
        record(tiny.config, tiny.weights.names | {"layers.0.self_attn.q_proj.bias"})
