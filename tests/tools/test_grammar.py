"""The grammars: what a family writes is accepted, half a call and a wrong one are not."""

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.grammar.backend import MatcherState
from octavo.grammar.llguidance_backend import LLGuidanceBackend, grammar_text, refusal
from octavo.testing.byte_tokenizer import byte_tokenizer
from octavo.tools.definitions import Tool, ToolChoice, custom_tool, function_tool
from octavo.tools.formats import (
    HERMES,
    MISTRAL,
    PYTHONIC,
    QWEN3_CODER,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)
from octavo.tools.grammar import arguments_schema, output_grammar

THINK = REASONING_FORMATS["think"]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Lima"]}}, "required": ["city"]}
LARK = 'start: NUM ("+" NUM)*\nNUM: /[0-9]{1,3}/\n'
TOOLS = [
    function_tool({"name": "get_weather", "parameters": CITY}, "tools[0]"),
    function_tool({"name": "clock_now"}, "tools[1]"),
    custom_tool({"name": "code"}, "tools[2]"),
    custom_tool({"name": "path", "format": {"type": "grammar", "grammar": {
        "syntax": "regex", "definition": "[a-z]+/[0-9]{2}"}}}, "tools[3]"),
    custom_tool({"name": "sum", "format": {"type": "grammar", "grammar": {
        "syntax": "lark", "definition": LARK}}}, "tools[4]"),
]
CALLS: list[tuple[str, Any]] = [("get_weather", {"city": "Oslo"}), ("clock_now", {}),
                                ("code", "if a:\n <b>"), ("path", "ab/12"), ("sum", "1+22")]


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    tokenizer = byte_tokenizer()
    return LLGuidanceBackend(tokenizer.to_json(), vocab_size=tokenizer.vocab_size,
                             eos_token_ids=tokenizer.eos_token_ids)


def fits(backend: LLGuidanceBackend, spec: StructuredOutputs, text: str) -> str:
    """"yes", "no" or "so far"."""
    matcher = backend.compile(spec)
    assert refusal(spec) is None
    try:
        for byte in text.encode():
            matcher.accept([byte])
    except InvalidRequestError:
        return "no"
    return "so far" if matcher.state() == MatcherState.OPEN else "yes"


def grammar(form: ToolFormat, mode: str = "auto", *, tools: Sequence[Tool] = TOOLS,
            names: tuple[str, ...] | None = None, parallel: bool = True,
            reasoning: ReasoningFormat | None = None, prompt: str = "",
            wanted: StructuredOutputs | None = None) -> StructuredOutputs:
    found = output_grammar(form=form, tools=tools, choice=ToolChoice(mode, names, parallel),  # type: ignore[arg-type]
                           reasoning=reasoning, prompt=prompt, wanted=wanted,
                           control_token={}.get)
    assert found is not None
    return found


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
def test_what_a_family_writes(backend: LLGuidanceBackend, form: ToolFormat) -> None:
    every, one = form.write(CALLS), form.write(CALLS[:1])
    for mode in ("auto", "required"):
        assert fits(backend, grammar(form, mode), every) == "yes"
        assert fits(backend, grammar(form, mode, parallel=False), one) == "yes"
        assert fits(backend, grammar(form, mode, parallel=False), every) == "no"
        assert fits(backend, grammar(form, mode, reasoning=THINK),
                    f"<think>\nHm {every[:9]}\n</think>\n\n{every}") == "yes"
        assert fits(backend, grammar(form, mode, names=("clock_now",)), one) == "no"
        for place in (20, len(one) - 3):
            assert fits(backend, grammar(form, mode), one[:place]) in ("so far", "yes")
    for wrong in (one.replace("Oslo", "Rome"), one.replace("city", "town"),
                  form.write([("no_such", {})]), form.write([("clock_now", {"a": 1})]),
                  form.write([("path", "ab/123")]), form.write([("sum", "1+")])):
        assert fits(backend, grammar(form), wrong) == "no"


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)
def test_text(backend: LLGuidanceBackend, form: ToolFormat) -> None:
    for text in ("", "Yes. <tool> {[ \n\u00fc", '{"nam', '{"a": 1}'):
        assert fits(backend, grammar(form), text) == "yes"
        # held to calls, there is no text but the beginning of one
        assert fits(backend, grammar(form, "required"), text) != "yes"
    half = form.write(CALLS[:1])[:-6]
    assert fits(backend, grammar(form), half) == "so far"


def test_the_trigger_ends_freedom(backend: LLGuidanceBackend) -> None:
    spec = grammar(HERMES)
    assert fits(backend, spec, "I see. <tool_call") == "yes"
    assert fits(backend, spec, "I see. <tool_call>") == "so far"
    assert fits(backend, spec, "I see. <tool_call> ") == "no"
    whole = "I see. " + HERMES.write(CALLS[1:2])
    assert fits(backend, spec, whole) == "yes" and fits(backend, spec, whole + " Done") == "no"


def test_a_wanted_form(backend: LLGuidanceBackend) -> None:
    """Content has it, calls need not; reasoning comes before."""
    for wanted, content in (
            (StructuredOutputs(json={"enum": [1, "a/b"]}), '"a/b"'),
            (StructuredOutputs(regex="a/b|\\/"), "a/b"),
            (StructuredOutputs(choice=["yes", 'n"o']), 'n"o'),
            (StructuredOutputs(grammar='start: "a" b\nb: /[0-9]+/'), "a12"),
            (StructuredOutputs(grammar='root ::= "a" b\nb ::= [0-9]+'), "a12")):
        spec = grammar(HERMES, wanted=wanted, reasoning=THINK)
        assert fits(backend, spec, content) == "yes"
        assert fits(backend, spec, f"<think>Hm.</think>\n{content}") == "yes"
        assert fits(backend, spec, "Hello") == "no"
        assert fits(backend, spec, HERMES.write(CALLS)) == "yes"
        alone = output_grammar(form=None, tools=(), choice=ToolChoice(), reasoning=THINK,
                               prompt="<think>\n", wanted=wanted, control_token={}.get)
        assert alone is not None and alone.field == wanted.field
        assert fits(backend, alone, f"Hm.</think>{content}") == "yes"
        assert fits(backend, alone, content) == "so far"


def test_nothing_is_added_where_nothing_is_asked() -> None:
    wanted = StructuredOutputs(regex="a")
    for reasoning, prompt in ((None, ""), (THINK, "<think>\n\n</think>\n\n")):
        assert output_grammar(form=HERMES, tools=TOOLS, choice=ToolChoice("none"), prompt=prompt,
                              reasoning=reasoning, wanted=wanted, control_token={}.get) is wanted
    assert output_grammar(form=None, tools=(), choice=ToolChoice(), reasoning=THINK, prompt="",
                          wanted=None, control_token={}.get) is None


def test_markers_that_are_control_tokens() -> None:
    spec = output_grammar(
        form=MISTRAL, tools=TOOLS[:1], choice=ToolChoice(), reasoning=None, prompt="",
        wanted=None, control_token={"[TOOL_CALLS]": "<[5]>"}.get)
    assert spec is not None and spec.grammar is not None and spec.field == "tools"
    assert "lead: /(?s:.*)/ <[5]>" in spec.grammar and '"[TOOL_CALLS]"' not in spec.grammar
    assert refusal(spec) is None and grammar_text(spec)


def test_schemas() -> None:
    """Undeclared arguments are not written; strict refuses what it cannot enforce."""
    assert arguments_schema(TOOLS[0])["additionalProperties"] is False
    for schema in ({"additionalProperties": {}}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}):
        assert arguments_schema(Tool("a", parameters=schema)).get("additionalProperties") != False  # noqa: E712
    odd = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "b"}}}}
    loose = grammar(HERMES, tools=[Tool("a", parameters=odd)])
    strict = grammar(HERMES, tools=[Tool("a", parameters=odd, strict=True)])
    assert refusal(loose) is None
    ahead = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "^(?!x)"}}}
    assert refusal(grammar(HERMES, tools=[Tool("a", parameters=ahead)])) is None
    wrong = grammar(HERMES, tools=[Tool("a", parameters={"properties": {"a": {"type": "no"}}})])
    assert "Invalid type: no" in (refusal(wrong) or "") and "{" not in (refusal(wrong) or "")
    assert '"not"' in (refusal(strict) or "")


def test_a_large_set_of_tools_compiles(backend: LLGuidanceBackend) -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(12)}}
    tools = [Tool(f"tool_{i}", parameters=schema) for i in range(128)]
    for form in TOOL_FORMATS.values():
        text = form.write([("tool_127", {"p11": "x"})])
        assert fits(backend, grammar(form, tools=tools), text) == "yes"


XML_SCHEMA = {
    "type": "object", "required": ["text", "count", "kind"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}},
                        "required": ["x"], "additionalProperties": False}},
    "properties": {
        "text": {"type": "string", "description": "Any."},
        "word": {"type": "string", "pattern": "^[a-z/]+$", "maxLength": 4},
        "part": {"type": "string", "pattern": "b+"},
        "count": {"type": "integer", "minimum": 3}, "kind": {"enum": ["a b", 7]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "at": {"type": "array", "items": {"$ref": "#/$defs/point"}}}}


@pytest.mark.parametrize("strict", [False, True])
def test_each_parameter_is_held_to_its_schema(backend: LLGuidanceBackend, strict: bool) -> None:
    tool = function_tool({"name": "f", "parameters": XML_SCHEMA, "strict": strict}, "tools[0]")
    spec = grammar(QWEN3_CODER, "required", tools=[tool])
    sound = {"text": "a\n</b> \u00fc\n", "count": 3, "kind": "a b"}
    for more in ({}, {"text": ""}, {"text": "\n"}, {"word": "a/b"}, {"part": "abc"}, {"kind": 7},
                 {"maybe": None}, {"maybe": "x"}, {"at": [{"x": 1.5}]}):
        ordered = {key: (sound | more)[key] for key in XML_SCHEMA["properties"]
                   if key in sound | more}
        assert fits(backend, spec, QWEN3_CODER.write([("f", ordered)])) == "yes", more
    for wrong in ({"word": "abcde"}, {"word": "aB"}, {"word": ""}, {"part": "aca"}, {"count": 2},
                  {"count": "x"}, {"kind": "7 "}, {"at": [{"y": 1}]}, {"at": {}}):
        ordered = {key: (sound | wrong)[key] for key in XML_SCHEMA["properties"]
                   if key in sound | wrong}
        assert fits(backend, spec, QWEN3_CODER.write([("f", ordered)])) == "no", wrong
    assert fits(backend, spec, QWEN3_CODER.write([("f", {"text": "a"})])) == "no"
    # what the parser would take for the value's end is one
    hidden = QWEN3_CODER.write([("f", sound | {"text": "</parameter>x"})])
    assert fits(backend, spec, hidden) == "no"


def test_parameters_that_nobody_named(backend: LLGuidanceBackend) -> None:
    tool = Tool("f", parameters={"properties": {"a": {"type": "integer"}},
                                 "additionalProperties": True})
    spec = grammar(QWEN3_CODER, "required", tools=[tool])
    for arguments, found in (({}, "yes"), ({"a": 1, "b c": "x", "d": [2]}, "yes"),
                             ({"b": "x"}, "yes"), ({"b": "x", "a": "x"}, "no")):
        assert fits(backend, spec, QWEN3_CODER.write([("f", arguments)])) == found


@pytest.mark.parametrize(("strict", "schema", "field"), [
    (True, {"properties": {"a": {"type": "string", "format": "date"}}}, "properties.a.format"),
    (True, {"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "properties.a.pattern"),
    (True, {"anyOf": [{"required": ["a"]}]}, "anyOf"),
    (False, {"properties": {"a<b": {}}, "required": ["a<b"]}, "properties"),
])
def test_what_xml_cannot_hold_is_refused(backend: LLGuidanceBackend, strict: bool,
                                         schema: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as told:
        grammar(QWEN3_CODER, tools=[Tool("f", parameters=schema, strict=strict, field="tools[3]")])
    assert told.value.param == f"tools[3].parameters.{field}"
    if strict:  # else the rest is held
        loose = grammar(QWEN3_CODER, tools=[Tool("f", parameters=schema)])
        assert fits(backend, loose, QWEN3_CODER.write([("f", {"a": "x"})])) == "yes"


def test_python_words_and_their_order(backend: LLGuidanceBackend) -> None:
    tool = Tool("f", strict=True, parameters={
        "required": ["b"], "$defs": {"flag": {"type": "boolean"}}, "properties": {
            "a": {"type": ["integer", "null"]}, "b": {"type": "boolean"},
            "c": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
            "d": {"type": "array", "items": {"type": "boolean"}}, "e": {"enum": ["x", None, 3]},
            "g": {"type": "object", "properties": {"on": {"$ref": "#/$defs/flag"}}}}})
    spec = grammar(PYTHONIC, tools=[tool])
    for sound in ("b=True", "a=5, b=False", "a=None, b=True, c=None", 'b=True, c="ab"',
                  "b=True, d=[]", "b=True, d=[True, False]", "b=True, e=None", 'b=True, e="x"',
                  'b=True, g={"on": true}'):
        assert fits(backend, spec, f"[f({sound})]") == "yes", sound
    for wrong in ("", "a=5", "b=true", "b=True, a=5", "b=True,", ", b=True", 'b=True, c="abc"',
                  "b=True, d=[None]", "b=True, e=x", "b=True, z=1", "b=1"):
        assert fits(backend, spec, f"[f({wrong})]") == "no", wrong
    for wrong_tool in (Tool("f", parameters={"properties": {"a b": {}}, "required": ["a b"]}),
                       Tool("f", parameters={"anyOf": [{}, {"minProperties": 1}]}, strict=True)):
        with pytest.raises(InvalidRequestError, match="where calls are Python"):
            grammar(PYTHONIC, tools=[wrong_tool])
