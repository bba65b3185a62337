"""Schemas are enforced exactly or refused: every kind that llguidance alone gets wrong, schemas as
pydantic and zod write them, and the JSON Schema Test Suite where it is at hand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.schema_suite import default_tokenizer, run, spellings
from octavo.core.json_schema import enforceable
from octavo.core.json_schema_formats import ecma_pattern
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.grammar.backend import MatcherState
from octavo.grammar.llguidance_backend import LLGuidanceBackend, refusal
from tests.grammar.parts import real_backend


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return real_backend()


def accepts(backend: LLGuidanceBackend, schema: Any, value: Any) -> bool:
    start = backend.compile(StructuredOutputs(json=schema))

    def is_whole(text: str) -> bool:
        matcher = start.copy()
        try:
            matcher.accept(list(text.encode()))
        except InvalidRequestError:
            return False
        return matcher.state() != MatcherState.OPEN

    return any(is_whole(text) for text in spellings(value))


OPEN: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
# (schema, values that fit, values that do not)
KINDS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"format": "date"}, ["2024-02-29", "2000-02-29", 5],
     ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01"]),
    ({"format": "time"}, ["23:59:59Z", "23:59:60Z", "15:59:60-08:00", "01:29:60.5+01:30"],
     ["22:59:60Z", "23:59:60+01:00", "24:00:00Z", "10:00:00"]),
    ({"format": "date-time"}, ["1998-12-31T23:59:60Z", "2024-02-29t00:00:00.25+05:30"],
     ["1998-12-31T23:58:60Z", "2023-02-29T00:00:00Z", "2024-01-01"]),
    ({"format": "email"}, ["a.b+c@d.example", '"joe bloggs"@d.example', "a@[127.0.0.1]",
                           "a@[IPv6:::1]"], ["a..b@c.d", ".a@b.c", "a@b@c", "a@[127.0.0.300]"]),
    ({"format": "ipv6"}, ["::1", "1::d6:192.168.0.1", "1:2:3:4:5:6:7:8", "::"],
     ["1:2:3:4:5:6:7", "1::2::3", "12345::", "1::256.1.1.1"]),
    ({"type": "string", "format": "date", "pattern": "^2024"}, ["2024-02-29"], ["2023-01-01"]),
    ({"pattern": r"^\s[\s]\S$"}, ["\ufeff\ufeffa"], ["\u0085 a", "  \ufeff"]),
    ({"pattern": r"^[[a&&b]+$"}, ["[&ab"], ["c"]),
    ({"uniqueItems": False}, [[1, 1]], []),
    ({"uniqueItems": True, "maxItems": 1}, [[1], []], [[1, 1]]),
    ({"contains": {"const": 1}, "minContains": 0}, [[2], []], []),
    ({"minContains": 3, "maxContains": 1}, [[2]], []),
    ({"if": {"const": 1}}, [1, 2], []),
    ({"then": {"const": 1}, "else": False}, [2], []),
    ({"not": False}, [2], []),
    ({"unevaluatedProperties": True, "allOf": [{"title": "x"}]}, [{"a": 1}], []),
    ({"properties": {"a": {"const": 1}}, "unevaluatedProperties": False}, [{"a": 1}, {}],
     [{"b": 1}]),
    ({"prefixItems": [{"const": 1}], "unevaluatedItems": {"const": 2}}, [[1, 2, 2]], [[1, 3]]),
    ({"dependentRequired": {"a": []}, "dependentSchemas": {"a": {}}}, [{"a": 1}], []),
    ({"$dynamicAnchor": "a", "type": "array", "items": {"$ref": "#a"}}, [[[], [[]]]], [1, [1]]),
    (OPEN | {"propertyNames": {"type": "string"}}, [{"x": 1}], [{"x": "y"}]),
    (OPEN | {"propertyNames": {"enum": ["a", "b"]}, "required": ["a"]},
     [{"a": 1}, {"b": 1, "a": 2}], [{"c": 1}, {"b": 1}, {"a": "x"}]),
    (OPEN | {"propertyNames": {"pattern": "^k"}}, [{"k1": 1, "k2": 2}, {}], [{"x": 1}]),
    ({"type": "integer", "format": "int32"}, [5], ["5"]),
    ({"type": ["integer", "string"], "format": "int64"}, [5, "x"], [1.5]),
    ({"type": "string", "format": "nanoid", "pattern": "^[a-z]{2}$"}, ["ab"], ["abc"]),
    ({"type": "string", "format": "includes", "allOf": [{"pattern": "^ab"}, {"pattern": "c$"}]},
     ["abc"], ["ab"]),
    ({"$ref": "#/components/day", "components": {"day": {"format": "date"}}}, ["2024-02-29"],
     ["2023-02-29"]),
    # names of properties, and values, are no keywords
    ({"properties": {"format": {"const": {"uniqueItems": False}}}, "required": ["format"]},
     [{"format": {"uniqueItems": False}}], [{"format": {}}]),
]


@pytest.mark.parametrize(("schema", "fits", "does_not"), KINDS, ids=lambda v: json.dumps(v)[:40])
def test_each_kind_is_enforced(backend: LLGuidanceBackend, schema: Any, fits: list[Any],
                               does_not: list[Any]) -> None:
    before = json.dumps(schema)
    for value in fits:
        assert accepts(backend, schema, value), value
    for value in does_not:
        assert not accepts(backend, schema, value), value
    assert json.dumps(schema) == before
    assert refusal(StructuredOutputs(json=schema)) is None


@pytest.mark.parametrize("schema", [
    {"uniqueItems": True}, {"contains": {"const": 1}}, {"not": {"const": 1}},
    {"contains": {"const": 1}, "minContains": 0, "unevaluatedItems": False},
    {"if": {"properties": {"a": True}}, "unevaluatedProperties": False},
    {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
    {"propertyNames": {"pattern": "^a"}, "properties": {"b": True}},
    {"propertyNames": {"maxLength": 3}}, {"dependentRequired": {"a": ["b"]}},
    {"format": "hostname"}, {"format": "idn-email"}, {"format": "datetime"},
    {"format": "hostname", "pattern": "a"},
], ids=json.dumps)
def test_what_is_not_enforced_is_refused(schema: dict[str, Any]) -> None:
    assert refusal(StructuredOutputs(json=schema)) is not None


def test_rewriting_ends_on_documents_that_point_to_themselves() -> None:
    schema = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
              "$ref": "#/$defs/a", "properties": {"x": {"$ref": "#"}, "y": {"$ref": "#/nowhere/9"}}}
    assert enforceable(schema) == schema
    assert ecma_pattern("a[") == "a[" and ecma_pattern("\\") == "\\"


def test_the_suite_reads_values_not_spellings() -> None:
    assert spellings({"a": 1.0, "b": [2]})[:2] == ['{"a":1,"b":[2]}', '{"a":1.0,"b":[2]}']
    assert '{"b":[2],"a":1}' in spellings({"a": 1.0, "b": [2]})


@pytest.mark.full
@pytest.mark.skipif("OCTAVO_SCHEMA_SUITE" not in os.environ, reason="OCTAVO_SCHEMA_SUITE does not "
                    "name the folder tests/draft2020-12 of the JSON Schema Test Suite")
def test_the_json_schema_test_suite() -> None:
    scores = run(Path(os.environ["OCTAVO_SCHEMA_SUITE"]), default_tokenizer("smollm2-135m"))
    assert scores["octavo"].wrong == []
    assert scores["octavo"].passed >= 0.9 * scores["llguidance"].passed > 500
    assert scores["llguidance"].wrong  # the comparison can tell
