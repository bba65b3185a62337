"""llguidance as Octavo uses it: what comes out validates, what it refuses is named."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.grammar import llguidance_backend
from octavo.grammar.backend import MatcherState
from octavo.grammar.llguidance_backend import LLGuidanceBackend, refusal
from octavo.tokenizer.loading import load_tokenizer
from octavo.weights.model_file import open_model
from tests.grammar.parts import EOS_IDS, allowed, compact, fits, real_backend


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return real_backend()


def write(backend: LLGuidanceBackend, spec: StructuredOutputs, rng: random.Random) -> str | None:
    """Random bytes the grammar allows; None if it has not ended by itself."""
    matcher = backend.compile(spec)
    out: list[int] = []
    while matcher.state() != MatcherState.COMPLETE:
        ids = sorted(allowed(matcher, backend.vocab_size))
        ends = [i for i in ids if i in EOS_IDS]
        assert bool(ends) == (matcher.state() == MatcherState.ACCEPTING)
        # ends where it may, and leans to characters that close things
        closing = [i for i in ids if i in set(b'"]}')]
        token_id = ends[0] if ends else rng.choice(closing * 8 + ids)
        if token_id in EOS_IDS:
            break
        matcher.accept([token_id])
        out.append(token_id)
        if len(out) > 3000:
            return None
    return bytes(out).decode()


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
     "required": ["a", "b"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 120}, "minItems": 2,
     "maxItems": 4},
    {"enum": ["🌶️", "漢字", "x", 3, None, [1], {"k": "v"}]},
    {"type": "object", "properties": {"s": {"type": "string", "minLength": 2, "maxLength": 4},
                                      "p": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}},
     "required": ["s", "p"], "additionalProperties": False},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "items": {"const": 1},
                                                    "maxItems": 3}]},
    {"type": "object", "properties": {"inner": {"type": "object", "properties": {
        "n": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["n"],
        "additionalProperties": False}}, "required": ["inner"], "additionalProperties": False},
    {"type": "object", "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_what_is_written_validates(backend: LLGuidanceBackend, schema: dict[str, Any]) -> None:
    rng = random.Random(3)
    spec = StructuredOutputs(json=schema)
    texts = [t for _ in range(15) if (t := write(backend, spec, rng)) is not None]
    assert len(texts) >= 10
    for text in texts:
        assert fits(json.loads(text), schema), text
        assert compact(text), text


def test_the_schema_check_of_these_tests_can_fail() -> None:
    wrong = [{"a": True}, [1], "y", {"s": "abc", "p": "a-1"}, "abcd", {"inner": {"n": 2}},
             {"more": 1}]
    for value, schema in zip(wrong, SCHEMAS):
        assert not fits(value, schema), (value, schema)


def test_white_space_where_it_is_asked_for(backend: LLGuidanceBackend) -> None:
    spec = StructuredOutputs(json={"type": "array", "items": {"const": 1}, "minItems": 2,
                                   "maxItems": 2}, whitespace_pattern=" {1}")
    matcher = backend.compile(spec)
    matcher.accept(list(b"[ 1 , 1 ]"))
    with pytest.raises(InvalidRequestError):
        backend.compile(StructuredOutputs(json=spec.json)).accept(list(b"[ "))


@pytest.mark.parametrize("text", ["(ab|cd)+e", "[0-9]{3}-[0-9]{2}", "^[a-z]+$", "漢|字{2}"])
def test_regex(backend: LLGuidanceBackend, text: str) -> None:
    rng = random.Random(1)
    for _ in range(5):
        written = write(backend, StructuredOutputs(regex=text), rng)
        assert written is not None and re.fullmatch(text, written)


@pytest.mark.parametrize("text", ['start: "a" (B | "c")+\nB: /b+/', 'root ::= "a" [bc]+'],
                         ids=["lark", "gbnf"])
def test_grammar(backend: LLGuidanceBackend, text: str) -> None:
    written = write(backend, StructuredOutputs(grammar=text), random.Random(2))
    assert written is not None and re.fullmatch("a[bc]+", written)


REFUSED = [
    ({"json": {"not": {"type": "string"}}}, '"not"'),
    ({"json": {"type": "object", "properties": {"a": {"uniqueItems": True}}}}, '"uniqueItems"'),
    ({"json": {"if": {}, "then": {"const": 1}}}, '"if"'),
    ({"json": {"properties": {"a": {"type": "string", "format": "hostname"}}}}, '"hostname"'),
    ({"json": {"oneOf": [{"type": "string"}, {"type": "string"}]}}, '"oneOf"'),
    ({"json": {"type": "string", "pattern": "^(?!0)a"}}, '"pattern"'),
    ({"json": {"type": "string", "format": "no-such"}}, "format"),
    ({"json": {"type": "stringg"}}, "stringg"),
    ({"json": {"$ref": "#/nowhere"}}, "nowhere"),
    ({"json": {"$ref": "http://example.com/schema"}}, "example.com"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
    ({"regex": "[a"}, "regex"),
    ({"regex": "(a)\\1"}, "backreferences"),
    ({"grammar": "start: nowhere"}, "nowhere"),
    ({"grammar": "no grammar at all"}, "grammar"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=lambda v: str(v)[:40])
def test_refused_with_its_name(backend: LLGuidanceBackend, fields: dict[str, Any], named: str
                               ) -> None:
    spec = StructuredOutputs(**fields)
    with pytest.raises(InvalidRequestError) as refused:
        backend.compile(spec)
    assert named in refused.value.message and "\n" not in refused.value.message
    assert refused.value.param == "structured_outputs"
    # the check before a request is accepted says the same
    assert refusal(spec) == refused.value.message.removeprefix("structured_outputs: ")


def test_the_documented_refusals_are_the_refusals() -> None:
    """Every keyword of the guide's list is refused, and no other of these."""
    text = (Path(__file__).parents[2] / "docs" / "STRUCTURED_OUTPUT.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("- Keywords:"))
    documented = set(re.findall("`([^`]+)`", line))
    values: dict[str, Any] = {
        "contains": {"const": 1}, "uniqueItems": True,
        "unevaluatedItems": [{"unevaluatedItems": False, "allOf": [{"items": {}}]}],
        "unevaluatedProperties": [{"unevaluatedProperties": False, "allOf": [{"title": "x"}]}],
        "dependentRequired": {"a": ["b"]}, "dependencies": {"a": ["b"]}, "$dynamicRef": "#a",
        "$recursiveRef": "#", "dependentSchemas": {"a": {"const": 1}}, "type": "string",
        "if": [{"if": {"const": 1}, "then": {"const": 1}}], "not": {"const": 1},
        "propertyNames": {"minLength": 2}, "items": {},
        "prefixItems": [{}], "minItems": 1, "maxItems": 2, "properties": {"a": {}},
        "required": ["a"], "additionalProperties": False, "patternProperties": {"^a": {}},
        "minProperties": 1, "maxProperties": 2, "allOf": [{}], "anyOf": [{}], "enum": [1],
        "const": 1, "minimum": 1, "maximum": 2, "exclusiveMinimum": 1, "exclusiveMaximum": 4,
        "multipleOf": 2, "minLength": 1, "maxLength": 2, "pattern": "a", "format": "date",
        "$ref": [{"$ref": "#/$defs/a", "$defs": {"a": {}}}], "$defs": {},
        "title": "x", "description": "x", "default": 1,
        "oneOf": [{"type": "string"}, {"type": "null"}],
    }
    whole = ("if", "unevaluatedItems", "unevaluatedProperties", "$ref")
    schemas = {keyword: value[0] if keyword in whole else {keyword: value}
               for keyword, value in values.items()}
    refused = {keyword for keyword, schema in schemas.items()
               if refusal(StructuredOutputs(json=schema)) is not None}
    assert refused == documented


def test_a_grammar_that_grows_too_complex_fails_alone(backend: LLGuidanceBackend) -> None:
    """The bound is met in the middle of an output, at the same token every time."""
    spec = StructuredOutputs(regex="((([a-z]{1,500}){1,500}){1,500})")
    lengths = []
    for _ in range(2):
        matcher, length = backend.compile(spec), 0
        with pytest.raises(InvalidRequestError, match="any further"):
            while length < 2000:
                matcher.accept([ord("a")])
                allowed(matcher, backend.vocab_size)
                length += 1
        lengths.append(length)
    assert lengths[0] == lengths[1] > 0
    other = backend.compile(StructuredOutputs(choice=["ok"]))
    other.accept(list(b"ok"))


def test_masks_do_not_depend_on_the_sets_of_tokens(
        model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real vocabulary: looked up in sets, or one token after another."""
    with open_model(model_path) as model_file:
        tokenizer = load_tokenizer(model_file)
    text = tokenizer.to_json()
    built = []
    for slices in (llguidance_backend._SLICES, []):
        monkeypatch.setattr(llguidance_backend, "_SLICES", slices)
        built.append(LLGuidanceBackend(text, vocab_size=tokenizer.vocab_size,
                                       eos_token_ids=tokenizer.eos_token_ids))
    schemas: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 12}, {"type": "string"},
        {"type": "string", "format": "email"}, {"type": "string", "pattern": "^[a-z ]{3,15}$"},
        {"type": "array", "items": {"enum": ["sun", "summer"]}},
    ]
    outputs = ['"Bring it on"', '"an ordinary line, with \\"more\\" in it"',
               '"jane.roe@mail.example.org"', '"the quick fox"', '["summer","sun"]']
    for schema, output in zip(schemas, outputs, strict=True):
        matchers = [backend.compile(StructuredOutputs(json=schema)) for backend in built]
        for token_id in tokenizer.encode(output, add_special_tokens=False):
            first, second = (allowed(matcher, tokenizer.vocab_size) for matcher in matchers)
            assert first == second and token_id in first
            for matcher in matchers:
                matcher.accept([token_id])
        assert matchers[0].state() != MatcherState.OPEN
