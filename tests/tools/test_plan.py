"""Plans: families by template, conversations for templates with and without tools, limits."""

import json
from typing import Any

import pytest

from octavo.errors import ConfigError, InvalidRequestError
from octavo.testing.byte_tokenizer import byte_tokenizer
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tools.definitions import (
    MAX_TOOLS,
    Tool,
    ToolChoice,
    check_choice,
    check_tools,
    custom_tool,
    function_tool,
)
from octavo.tools.formats import reasoning_format, tool_format
from octavo.tools.plan import AnswerPlan, ModelFormats

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
WITH_TOOLS = "{{ tools | tojson }}<tool_call>{{ messages | tojson }}</think>"
WEATHER = function_tool({"name": "get_weather", "description": "Weather.",
                         "parameters": {"type": "object"}}, "tools[0]")
CODE = custom_tool({"name": "code", "description": "Runs code."}, "tools[1]")
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "4 C"}


def formats(source: str, **parsers: str) -> ModelFormats:
    template = ChatTemplate(source, bos_token="", eos_token="", control_tokens=())
    return ModelFormats.of(template, byte_tokenizer(), **parsers)


@pytest.mark.parametrize(("template", "takes_tools", "name"), [
    ("", False, "hermes"), ("<tool_call>", True, "hermes"), ("[TOOL_CALLS]", True, "mistral"),
    ("[TOOL_CALLS] [ARGS]", True, "mistral_args"), ("<|python_tag|>", True, "llama3_json"),
    ("ipython", True, "llama3_json"), ("<|tool_call|>", True, "json"),
    ("<tool_call>\n<function=", True, "qwen3_coder"),
    ("[func_name1(a=1)] ipython", True, "pythonic"),
])
def test_families(template: str, takes_tools: bool, name: str) -> None:
    assert tool_format("auto", template, takes_tools=takes_tools).name == name
    assert tool_format("qwen", template, takes_tools=takes_tools).name == "hermes"


def test_reasoning_families() -> None:
    for template, name in (("", None), ("a</think>", "think"), ("[/THINK]", "mistral")):
        found = reasoning_format("auto", template)
        assert (found and found.name) == name
    assert reasoning_format("none", "</think>") is None
    assert reasoning_format("qwen3", "").name == "think"  # type: ignore[union-attr]
    for made in (lambda: tool_format("x", "", takes_tools=True), lambda: reasoning_format("x", "")):
        with pytest.raises(ConfigError, match="_parser is 'x'"):
            made()


def test_a_template_without_tools() -> None:
    plan = AnswerPlan(formats(PLAIN), [WEATHER, CODE])
    messages, tools = plan.conversation([
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}, CALL,
        RESULT, RESULT | {"content": [{"type": "text", "text": "wind"}]},
        {"role": "user", "content": "Thanks"}])
    assert tools is None
    system, user, call, result, last = messages
    assert system["role"] == "system" and system["content"].startswith("Be brief.\n\n")
    assert json.dumps({"name": "get_weather", "description": "Weather.",
                       "parameters": {"type": "object"}}) in system["content"]
    assert "code: Runs code." in system["content"]
    assert call == {"role": "assistant", "content":
                    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
                    "</tool_call>"}
    assert result == {"role": "user", "content": "<tool_response>\n4 C\n</tool_response>\n"
                      "<tool_response>\nwind\n</tool_response>"}
    assert (user["content"], last["content"]) == ("Weather?", "Thanks")


def test_a_template_with_tools() -> None:
    plan = AnswerPlan(formats(WITH_TOOLS), [WEATHER])
    messages, tools = plan.conversation([CALL | {"reasoning": "Hm."}, RESULT])
    assert messages == [CALL | {"reasoning": "Hm.", "reasoning_content": "Hm."}, RESULT]
    assert tools is not None and tools[0]["function"]["name"] == "get_weather"
    assert not plan.is_plain and plan.parser("").parse("<think>a</think>b").reasoning == "a"


def test_a_conversation_is_left_alone_where_there_are_no_tools() -> None:
    for source in (PLAIN, WITH_TOOLS):
        plan = AnswerPlan(formats(source), [WEATHER], ToolChoice("none"))
        given = [{"role": "user", "content": "Hi"}]
        assert plan.conversation(given) == (given, None)
    assert AnswerPlan(formats(PLAIN)).is_plain
    assert not AnswerPlan(formats(WITH_TOOLS)).is_plain
    assert AnswerPlan(formats(WITH_TOOLS, reasoning_parser="none")).is_plain


def test_reasoning_tokens() -> None:
    plan, tokenizer = AnswerPlan(formats(WITH_TOOLS)), byte_tokenizer()
    for text, count in (("<think>ab</think>c", 17), ("abc", 0), ("<think>ab", 9)):
        assert plan.num_reasoning_tokens(tokenizer, "", list(text.encode())) == count
    assert plan.num_reasoning_tokens(tokenizer, "<think>", list(b"ab</think>c")) == 10


BAD: list[tuple[Any, str]] = [
    ({}, "t.name"), ({"name": ""}, "t.name"), ({"name": "a b"}, "t.name"), (None, "t"),
    ({"name": "a" * 65}, "t.name"), ({"name": "a", "description": 3}, "t.description"),
    ({"name": "a", "description": "x" * 20_000}, "t.description"),
    ({"name": "a", "parameters": []}, "t.parameters"),
    ({"name": "a", "parameters": {"type": "string"}}, "t.parameters.type"),
    ({"name": "a", "parameters": {"title": "x" * 70_000}}, "t.parameters"),
    ({"name": "a", "strict": 1}, "t.strict"),
]


@pytest.mark.parametrize(("given", "param"), BAD, ids=lambda v: str(v)[:30])
def test_bad_functions(given: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        function_tool(given, "t")
    assert refused.value.param == param


@pytest.mark.parametrize("form", [
    {"type": "x"}, {"type": "grammar", "grammar": {"syntax": "ebnf", "definition": "a"}},
    {"type": "grammar", "grammar": {"syntax": "lark"}}, 3])
def test_bad_formats(form: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"t\.format"):
        custom_tool({"name": "a", "format": form}, "t")


def test_limits_of_lists() -> None:
    with pytest.raises(InvalidRequestError, match="has 129 entries"):
        check_tools([Tool(f"t{i}") for i in range(MAX_TOOLS + 1)])
    with pytest.raises(InvalidRequestError, match="another tool"):
        check_tools([Tool("a"), Tool("a")])
    for choice in (ToolChoice("required"), ToolChoice("auto", ("b",))):
        with pytest.raises(InvalidRequestError):
            check_choice(choice, [])
    check_choice(ToolChoice("auto"), [])
