"""The parser: every family's golden outputs, whole and in pieces cut anywhere."""

import dataclasses
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.tools.definitions import Tool
from octavo.tools.formats import (
    HERMES,
    JSON,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_ARGS,
    PYTHONIC,
    QWEN3_CODER,
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)
from octavo.tools.parameters import kinds_by_tool
from octavo.tools.parser import OutputParser, ParsedOutput

THINK = REASONING_FORMATS["think"]
KINDS = {"get_weather": {"city": frozenset(("string",)), "days": frozenset(("integer", "null"))}}
NAMES = ("get_weather", "clock_now", "code")
Calls = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Golden:
    """An output and what it means."""

    form: ToolFormat | None
    text: str
    content: str = ""
    calls: Sequence[tuple[str, str]] = ()
    reasoning: str = ""
    thinks: ReasoningFormat | None = None
    prompt: str = ""


WEATHER = ("get_weather", '{"city": "Oslo"}')
CLOCK = ("clock_now", "{}")

GOLDEN = {
    "text": Golden(HERMES, " The <tool is {nice}.\n", " The <tool is {nice}.\n"),
    "hermes": Golden(
        HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
        "</tool_call>", calls=[WEATHER]),
    "hermes-text-and-two": Golden(
        HERMES, 'Let me see.\n\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": "clock_now", "arguments": {}}\n'
        "</tool_call>", "Let me see.", [WEATHER, CLOCK]),
    "hermes-no-spaces": Golden(
        HERMES, '<tool_call>{"name":"get_weather","arguments":{"city":"Oslo"}}</tool_call>',
        calls=[("get_weather", '{"city":"Oslo"}')]),
    "hermes-arguments-first": Golden(
        HERMES, '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>',
        calls=[WEATHER]),
    "hermes-arguments-in-a-string": Golden(
        HERMES, '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}'
        "</tool_call>", calls=[WEATHER]),
    "hermes-no-arguments": Golden(
        HERMES, '<tool_call>{"name": "clock_now"}</tool_call>', calls=[CLOCK]),
    "hermes-other-keys": Golden(
        HERMES, '<tool_call>{"id": 7, "x": [{"name": "a}"}], "name": "clock_now", '
        '"arguments": {}}</tool_call>', calls=[CLOCK]),
    "hermes-braces-in-strings": Golden(
        HERMES, '<tool_call>{"name": "code", "arguments": {"a": "}\\"</tool_call>{", "b": [1]}}'
        "</tool_call>", calls=[("code", '{"a": "}\\"</tool_call>{", "b": [1]}')]),
    "hermes-not-closed": Golden(
        HERMES, '<tool_call>\n{"name": "clock_now", "arguments": {}}', calls=[CLOCK]),
    "hermes-cut-in-arguments": Golden(
        HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"ci',
        calls=[("get_weather", '{"ci')]),
    "hermes-cut-in-name": Golden(
        HERMES, 'Hm <tool_call>\n{"name": "get_w', 'Hm <tool_call>\n{"name": "get_w'),
    "hermes-no-json": Golden(
        HERMES, "Write <tool_call> and </tool_call>.", "Write <tool_call> and </tool_call>."),
    "hermes-a-list-of-words": Golden(
        HERMES, '<tool_call>{"a": 1}</tool_call>!', '<tool_call>{"a": 1}</tool_call>!'),
    "hermes-text-behind": Golden(
        HERMES, '<tool_call>{"name": "clock_now"}</tool_call> Done.', " Done.", [CLOCK]),
    "custom": Golden(
        HERMES, '<tool_call>\n<custom name="code">if a < b:\n  "</cust"</custom>\n</tool_call>',
        calls=[("code", 'if a < b:\n  "</cust"')]),
    "llama": Golden(
        LLAMA3_JSON, '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        calls=[WEATHER]),
    "llama-tag": Golden(
        LLAMA3_JSON, '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; '
        '{"name": "clock_now", "parameters": {}}', calls=[WEATHER, CLOCK]),
    "llama-other-json": Golden(LLAMA3_JSON, '{"answer": 4}', '{"answer": 4}'),
    "llama-unknown-name": Golden(
        LLAMA3_JSON, '{"name": "Bob", "parameters": 1}', '{"name": "Bob", "parameters": 1}'),
    "llama-text": Golden(
        LLAMA3_JSON, '\nI am {"name": "clock_now"}', '\nI am {"name": "clock_now"}'),
    "llama-code": Golden(LLAMA3_JSON, "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    "mistral": Golden(
        MISTRAL, '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
        '{"name": "clock_now", "arguments": {}}]', calls=[WEATHER, CLOCK]),
    "mistral-text": Golden(
        MISTRAL, 'Yes.[TOOL_CALLS][{"name": "clock_now", "arguments": {}}]', "Yes.", [CLOCK]),
    "mistral-args": Golden(
        MISTRAL_ARGS, '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]clock_now[ARGS]{}',
        calls=[WEATHER, CLOCK]),
    "mistral-args-left-out": Golden(
        MISTRAL_ARGS, 'a [TOOL_CALLS]get_weather{"city": "Oslo"}', "a", [WEATHER]),
    "xml": Golden(
        QWEN3_CODER, "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOs\"lo\n5\n"
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "I look.",
        [("get_weather", '{"city": "Os\\"lo\\n5", "days": 3}')]),
    "xml-two": Golden(
        QWEN3_CODER, "<tool_call>\n<function=clock_now>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=get_weather>\n<parameter=city>\n5\n</parameter>\n</function>\n</tool_call>",
        calls=[CLOCK, ("get_weather", '{"city": "5"}')]),
    "xml-on-one-line": Golden(
        QWEN3_CODER, "<tool_call><function=get_weather><parameter=city></para</parameter>"
        "<parameter=days>None</parameter></function></tool_call>",
        calls=[("get_weather", '{"city": "</para", "days": null}')]),
    "xml-line-breaks": Golden(
        QWEN3_CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n\n</parameter>\n"
        "<parameter=city>\n\n</parameter>\n</function>\n</tool_call>",
        calls=[("get_weather", '{"city": "\\n", "city": ""}')]),
    "xml-undeclared": Golden(
        QWEN3_CODER, "<tool_call>\n<function=code>\n<parameter=a>\n[1, \"x\"]\n</parameter>\n"
        "<parameter=b>\n\"x\"\n</parameter>\n<parameter=c>\nNaN\n</parameter>\n</function>\n"
        "</tool_call>", calls=[("code", '{"a": [1, "x"], "b": "\\"x\\"", "c": "NaN"}')]),
    "xml-cut": Golden(
        QWEN3_CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</par",
        calls=[("get_weather", '{"city": "Oslo')]),
    "xml-cut-in-name": Golden(
        QWEN3_CODER, "<tool_call>\n<function=get", "<tool_call>\n<function=get"),
    "xml-no-call": Golden(QWEN3_CODER, "a <tool_call>\n<fun> {}", "a <tool_call>\n<fun> {}"),
    "python": Golden(
        PYTHONIC, '[get_weather(city="Os)\\"lo, ]", days=[1, None, {"a": True}]), clock_now()]',
        calls=[("get_weather", '{"city": "Os)\\"lo, ]", "days": [1, null, {"a": true}]}'), CLOCK]),
    "python-quotes": Golden(
        PYTHONIC, "\n<|python_start|>[get_weather( city = 'it\\'s \"x\"' , days=True, a=oslo, "
        "b=(1,))]",
        calls=[("get_weather", '{"city": "it\'s \\"x\\"", "days": true, "a": "oslo", "b": [1]}')]),
    "python-json-words": Golden(
        PYTHONIC, '[code(a={"b": [true, null]}, c=NaN)]',
        calls=[("code", '{"a": {"b": [true, null]}, "c": "NaN"}')]),
    "python-cut": Golden(PYTHONIC, '[get_weather(days=1, city="Os',
                         calls=[("get_weather", '{"days": 1, "city": ')]),
    "python-unknown-name": Golden(PYTHONIC, "[print(1)]", "[print(1)]"),
    "python-list": Golden(PYTHONIC, "[1, 2]", "[1, 2]"),
    "python-text": Golden(PYTHONIC, "It is [clock_now()]", "It is [clock_now()]"),
    "json": Golden(
        JSON, '{"name": "get_weather", "arguments": {"city": "Oslo"}}', calls=[WEATHER]),
    "json-list": Golden(
        JSON, '[{"name": "get_weather", "parameters": {"city": "Oslo"}}, {"name": "clock_now"}]',
        calls=[WEATHER, CLOCK]),
    "json-list-of-numbers": Golden(JSON, "[1, 2]", "[1, 2]"),
    "think": Golden(None, "<think>\nHm, a < b.\n</think>\n\nYes.", "Yes.",
                    reasoning="Hm, a < b.", thinks=THINK),
    "think-opened": Golden(None, "Hm.\n</think>\n\nYes.", "Yes.", reasoning="Hm.", thinks=THINK,
                           prompt="<|assistant|>\n<think>\n"),
    "think-opened-twice": Golden(None, "\n<think>Hm.</think>Yes.", "Yes.", reasoning="Hm.",
                                 thinks=THINK, prompt="<think>"),
    "think-closed": Golden(None, "Yes. </think>", "Yes. </think>", thinks=THINK,
                           prompt="<think>\n\n</think>\n\n"),
    "think-not": Golden(None, " No <think> here", " No <think> here", thinks=THINK),
    "think-cut": Golden(None, "<think>Hm </thi", reasoning="Hm </thi", thinks=THINK),
    "think-always": Golden(None, "Hm.</think>Yes.", "Yes.", reasoning="Hm.",
                           thinks=REASONING_FORMATS["deepseek_r1"]),
    "think-and-call": Golden(
        HERMES, '<think>I <tool_call> it.</think>\n\n<tool_call>{"name": "clock_now"}'
        "</tool_call>", calls=[CLOCK], reasoning="I <tool_call> it.", thinks=THINK),
    "think-brackets": Golden(
        MISTRAL, '[THINK]a[b[/THINK][TOOL_CALLS][{"name": "clock_now", "arguments": {}}]',
        calls=[CLOCK], reasoning="a[b", thinks=REASONING_FORMATS["mistral"]),
}


def parse(golden: Golden, pieces: Sequence[str]) -> tuple[str, str, Calls]:
    parser = OutputParser(tool_format=golden.form, tool_names=NAMES, reasoning=golden.thinks,
                          prompt=golden.prompt, kinds=KINDS)
    parsed = ParsedOutput()
    for piece in pieces:
        delta = parser.feed(piece)
        # one delta a call, and the id with the name
        assert len({c.index for c in delta.calls}) == len(delta.calls)
        assert all((c.name is None) == (c.call_id is None) for c in delta.calls)
        parsed.add(delta)
    parsed.add(parser.finish())
    assert parser.num_calls == len(parsed.calls)
    assert len({c.call_id for c in parsed.calls}) == len(parsed.calls)
    return parsed.content, parsed.reasoning, [(c.name, c.arguments) for c in parsed.calls]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    golden = GOLDEN[name]
    expected = golden.content, golden.reasoning, list(golden.calls)
    assert parse(golden, [golden.text]) == expected
    assert parse(golden, list(golden.text)) == expected


def cut(text: str, places: set[int]) -> list[str]:
    borders = [0, *sorted(p % (len(text) + 1) for p in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(borders)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(GOLDEN)), st.sets(st.integers(0, 400), max_size=12))
def test_cuts_make_no_difference(name: str, places: set[int]) -> None:
    golden = GOLDEN[name]
    assert parse(golden, cut(golden.text, places)) == parse(golden, [golden.text])


MARKUP = st.lists(st.sampled_from([
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "clock_now"',
    '"arguments": ', "{}", "}", "{", "[", "]", ", ", "; ", "\n", "a", '"', "\\", "[TOOL_CALLS]",
    "[ARGS]", "clock_now", '<custom name="', '">', "</custom>", "<|python_tag|>",
    "<function=get_weather>", "</function>", "<parameter=city>", "<parameter=days>",
    "</parameter>", "get_weather", "(", ")", "city=", "'", " "]), max_size=14).map("".join)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(sorted(TOOL_FORMATS)), st.sampled_from([None, THINK]), MARKUP,
       st.sets(st.integers(0, 400), max_size=12))
@example("hermes", None, '<tool_call>[{"name": "clock_now"{}<think>', {35})
@example("hermes", None, '<tool_call>{"name": "clock_now"{}<think>', {33})
def test_any_markup_in_any_pieces(form: str, thinks: ReasoningFormat | None, text: str,
                                  places: set[int]) -> None:
    """Whatever a model writes: no failure, and the cuts make no difference."""
    golden = Golden(TOOL_FORMATS[form], text, thinks=thinks)
    assert parse(golden, cut(text, places)) == parse(golden, [text])


# as keys of Python have to be; values are free
KEYS = st.text("abc_-$.\u00fc", min_size=1, max_size=5)
ARGUMENTS = st.dictionaries(KEYS, st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=3)), max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([name for name, form in TOOL_FORMATS.items() if form.style != "xml"]),
       st.lists(ARGUMENTS, min_size=1, max_size=3), st.sets(st.integers(0, 400), max_size=12))
def test_what_is_written_is_read(form: str, arguments: list[dict[str, object]],
                                 places: set[int]) -> None:
    text = TOOL_FORMATS[form].write([("code", a) for a in arguments])
    content, _, calls = parse(Golden(TOOL_FORMATS[form], text), cut(text, places))
    assert content == "" and [json.loads(c) for _, c in calls] == arguments


XML_ARGUMENTS = st.dictionaries(
    KEYS, st.recursive(
        st.none() | st.booleans() | st.integers() | st.text("a\n<\"/\\ \u00fc5", max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                    max_size=3)), max_size=3)


@settings(max_examples=150, deadline=None)
@given(XML_ARGUMENTS, st.sets(st.integers(0, 400), max_size=12))
def test_what_is_written_as_xml_is_read(arguments: dict[str, object], places: set[int]) -> None:
    """Texts come back as texts, whatever they look like, where the schema says so."""
    properties = {key: {"const": value} for key, value in arguments.items()}
    parser = OutputParser(tool_format=QWEN3_CODER, tool_names=NAMES, kinds=kinds_by_tool(
        [Tool("code", parameters={"properties": properties})]))
    parsed = ParsedOutput()
    for piece in cut(QWEN3_CODER.write([("code", arguments)]), places):
        parsed.add(parser.feed(piece))
    parsed.add(parser.finish())
    assert parsed.content == "" and [json.loads(c.arguments) for c in parsed.calls] == [arguments]


def test_texts_in_xml_come_as_they_are_written() -> None:
    parser = OutputParser(tool_format=QWEN3_CODER, tool_names=NAMES, kinds=KINDS)
    parser.feed("<tool_call>\n<function=get_weather>\n<parameter=city>")
    for piece, told in (("\nOs", '"Os'), ("l\n", "l"), ("o<", "\\no"), ("b", "<b")):
        [news] = parser.feed(piece).calls
        assert news.arguments == told


def test_arguments_come_as_they_are_written() -> None:
    """A stream need not wait for the end of a call."""
    parser = OutputParser(tool_format=HERMES, tool_names=NAMES)
    text = '<tool_call>\n{"name": "code", "arguments": '
    assert not parser.feed(text[:-17]).calls
    [first] = parser.feed(text[-17:]).calls
    assert (first.index, first.name, first.arguments) == (0, "code", "")
    for piece in ('{"a"', ": 12", "3, ", '"b": "</tool_'):
        [news] = parser.feed(piece).calls
        assert (news.arguments, news.name, news.call_id) == (piece, None, None)


def test_ids() -> None:
    assert HERMES.new_id().startswith("call_") and len(HERMES.new_id()) == 29
    assert len(MISTRAL.new_id()) == 9 and MISTRAL.new_id().isalnum()
