"""StructuredOutputs: one way of saying each thing, and refusals that name the field."""

from typing import Any

import msgspec
import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import MAX_GRAMMAR_BYTES, StructuredOutputs
from octavo.errors import InvalidRequestError

DEEP: Any = {}
for _ in range(50_000):
    DEEP = {"items": DEEP}


def test_equal_specs_have_equal_keys() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    as_text = '{"type": "object",\n "properties": {"b": {}, "a": {}}}'
    assert StructuredOutputs(json=schema).key == StructuredOutputs(json=as_text).key
    assert StructuredOutputs(json=True).key == StructuredOutputs(json={}).key
    free = StructuredOutputs(json_object=True)
    assert free.key == StructuredOutputs(json={"type": "object"}).key and free.kind == "json"
    assert StructuredOutputs(choice=["a", "b"]).key != StructuredOutputs(choice=["b", "a"]).key
    assert StructuredOutputs(regex="a").key != StructuredOutputs(grammar="a").key
    assert '"b":{},"a":{}' in StructuredOutputs(json=schema).key[1], "order of properties counts"


@pytest.mark.parametrize("fields", [
    {}, {"json": {}, "regex": "a"}, {"json_object": False}, {"json_object": 1},
    {"json": "{"}, {"json": "[]"}, {"json": False}, {"json": {"a": float("nan")}},
    {"json": {"a": {1, 2}}}, {"json": DEEP}, {"json": "[" * 100_000}, {"json": {"a": "\ud800"}},
    {"json": {"a": "x" * MAX_GRAMMAR_BYTES}}, {"regex": ""}, {"regex": 7},
    {"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, {"regex": "\ud800"}, {"grammar": ["a"]},
    {"choice": []}, {"choice": "ab"}, {"choice": [""]}, {"choice": [1]},
    {"choice": ["x"] * 10_001}, {"choice": ["x" * (MAX_GRAMMAR_BYTES // 2)] * 3},
    {"json": {}, "whitespace_pattern": "x" * 300}, {"json": {}, "whitespace_pattern": 1},
], ids=lambda v: (str(list(v)) if isinstance(v, dict) else str(v))[:30])
def test_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^response_format: ") as refused:
        StructuredOutputs(**fields, field="response_format")
    assert refused.value.param == "response_format" and len(refused.value.message) < 400


def test_in_sampling_params() -> None:
    params = SamplingParams(structured_outputs={"choice": ["a"]})  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputs(choice=["a"])
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params
    with pytest.raises(InvalidRequestError, match="regexp"):
        SamplingParams(structured_outputs={"regexp": "a"})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        SamplingParams(structured_outputs="a")  # type: ignore[arg-type]


def test_changes_after_construction_are_checked_again() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="a"))
    assert params.structured_outputs is not None
    params.structured_outputs.choice = ["b"]
    with pytest.raises(InvalidRequestError, match="regex and choice"):
        msgspec.structs.replace(params)
