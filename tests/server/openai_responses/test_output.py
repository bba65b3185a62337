"""Output items and their events, in the order that clients demand."""

from typing import Any

import msgspec
import pytest

from octavo.engine.outputs import CompletionOutput, Logprob
from octavo.server.openai_responses.output import OutputItems
from octavo.server.openai_responses.reader import OutputReader
from octavo.server.protocol.response_events import Event
from octavo.testing.byte_tokenizer import byte_tokenizer
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tools.definitions import Tool, ToolChoice
from octavo.tools.plan import AnswerPlan, ModelFormats

TOOLS = (Tool("look_up", parameters={"type": "object"}), Tool("run", is_custom=True))
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome <3 [1]"}}\n</tool_call>'
CUSTOM = '<tool_call>\n<custom name="run">ls -l\n</custom>\n</tool_call>'
BEGIN = ["response.output_item.added", "response.content_part.added"]
MESSAGE = [*BEGIN, "response.output_text.delta", "response.output_text.done",
           "response.content_part.done", "response.output_item.done"]
REASONING = [*BEGIN, "response.reasoning_text.delta", "response.reasoning_text.done",
             "response.content_part.done", "response.output_item.done"]
FUNCTION = ["response.output_item.added", "response.function_call_arguments.delta",
            "response.function_call_arguments.done", "response.output_item.done"]
CUSTOM_CALL = ["response.output_item.added", "response.custom_tool_call_input.delta",
               "response.custom_tool_call_input.done", "response.output_item.done"]


def plan(*, reasoning: bool = False, tools: bool = False) -> AnswerPlan:
    template = ChatTemplate("{{ messages }}", bos_token="", eos_token="", control_tokens=())
    formats = ModelFormats.of(template, byte_tokenizer(), tool_call_parser="hermes",
                              reasoning_parser="think" if reasoning else "none")
    return AnswerPlan(formats, TOOLS if tools else (), ToolChoice("auto"))


class Told:
    """What a client hears, as it hears it."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def add(self, event: Event) -> None:
        self.events.append(msgspec.json.decode(msgspec.json.encode(event)))

    @property
    def types(self) -> list[str]:
        """With runs of one kind as one."""
        types = [e["type"] for e in self.events]
        return [t for i, t in enumerate(types) if i == 0 or t != types[i - 1]]


def read(the_plan: AnswerPlan, text: str, size: int, *, reason: str = "stop",
         with_logprobs: bool = False, with_reasoning: bool = True
         ) -> tuple[list[dict[str, Any]], Told]:
    """The items of a text that comes in pieces of `size` bytes, and the events."""
    told, data = Told(), text.encode()
    items = OutputItems(told.add, with_reasoning=with_reasoning)
    reader = OutputReader(the_plan, "", items, tokenizer=byte_tokenizer(), num_top=1,
                          skip_special_tokens=True)
    pieces = [data[at:at + size] for at in range(0, len(data), size)] or [b""]
    for number, piece in enumerate(pieces, 1):
        logprobs = [{i: Logprob(-0.5, 1, chr(i))} for i in piece] if with_logprobs else None
        reader.take(CompletionOutput(
            index=0, text=piece.decode(), token_ids=list(piece), logprobs=logprobs,
            finish_reason=reason if number == len(pieces) else None))
    found = msgspec.json.decode(msgspec.json.encode(items.items))
    return found, told


CASES: list[tuple[dict[str, bool], str, list[list[str]]]] = [
    ({}, "Hello", [MESSAGE]),
    ({"reasoning": True}, "<think>\nso\n</think>\n\nHello", [REASONING, MESSAGE]),
    ({"tools": True}, "Hello <there> {you}", [MESSAGE]),
    ({"tools": True}, CALL, [FUNCTION]),
    ({"tools": True}, CUSTOM, [CUSTOM_CALL]),
    ({"tools": True}, f"Let me see.\n{CALL}\n{CALL}", [MESSAGE, FUNCTION, FUNCTION]),
    ({"tools": True, "reasoning": True}, f"<think>a</think>b{CALL}",
     [REASONING, MESSAGE, FUNCTION]),
    ({"tools": True}, f"before {CALL} behind", [MESSAGE, FUNCTION, MESSAGE]),
]


@pytest.mark.parametrize(("kind", "text", "expected"), CASES, ids=lambda v: str(v)[:40])
def test_events(kind: dict[str, bool], text: str, expected: list[list[str]]) -> None:
    for size in (1, 3, 1000):
        items, told = read(plan(**kind), text, size)
        assert told.types == [t for item in expected for t in item]
        check_events(told.events, items)
    # the last size was one piece: one delta an item
    assert sum(e["type"].endswith(".delta") for e in told.events) == len(items)


def check_events(events: list[Any], items: list[dict[str, Any]]) -> None:
    """Every event fits the item it is about, and ends as the item does."""
    for index, item in enumerate(items):
        mine = [e for e in events if e["output_index"] == index]
        assert mine[0]["item"]["id"] == item["id"] and mine[0]["item"]["status"] == "in_progress"
        assert mine[-1]["item"] == item
        assert all(e["item_id"] == item["id"] for e in mine[1:-1])
        text = "".join(e["delta"] for e in mine if e["type"].endswith(".delta"))
        if item["type"] in ("message", "reasoning"):
            assert mine[0]["item"]["content"] == [] and mine[1]["part"]["text"] == ""
            assert text == item["content"][0]["text"] == mine[-3]["text"]
            assert mine[-2]["part"] == item["content"][0]
        else:
            key = "arguments" if item["type"] == "function_call" else "input"
            assert mine[0]["item"][key] == ""
            assert text == item[key] == mine[-2][key]


@pytest.mark.parametrize(("kind", "text", "expected"), CASES, ids=lambda v: str(v)[:40])
def test_items_do_not_depend_on_the_pieces(kind: dict[str, bool], text: str,
                                           expected: list[list[str]]) -> None:
    def plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]

    whole = plain(read(plan(**kind), text, 1000, with_logprobs=True)[0])
    assert len(whole) == len(expected)
    for size in (1, 2, 7):
        pieces = plain(read(plan(**kind), text, size, with_logprobs=True)[0])
        if [i["type"] for i in whole].count("message") < 2:
            assert pieces == whole


def test_logprobs_are_those_of_the_text() -> None:
    text = f"<think>hmm\n</think>Hello.{CALL}"
    for size in (1, 1000):
        items, told = read(plan(tools=True, reasoning=True), text, size, with_logprobs=True)
        [part] = items[1]["content"]
        assert "".join(p["token"] for p in part["logprobs"]) == part["text"] == "Hello."
        deltas = [e for e in told.events if e["type"] == "response.output_text.delta"]
        assert [p for e in deltas for p in e["logprobs"]] == part["logprobs"]
    items, _ = read(plan(), "Hello", 2, with_logprobs=True)
    assert len(items[0]["content"][0]["logprobs"]) == 5


def test_a_cut_answer_is_incomplete() -> None:
    items, told = read(plan(), "Hel", 1, reason="length")
    assert items[0]["status"] == "incomplete" and told.types == MESSAGE
    items, _ = read(plan(tools=True), f"Hm.{CALL}"[:-30], 4, reason="length")
    assert [i["status"] for i in items] == ["completed", "incomplete"]
    items, _ = read(plan(reasoning=True), "<think>I wonder", 4, reason="length")
    assert [(i["type"], i["status"]) for i in items] == [("reasoning", "incomplete")]


def test_there_is_a_message_even_for_nothing() -> None:
    for reason in ("stop", "length"):
        items, told = read(plan(), "", 1, reason=reason)
        assert items[0]["content"][0]["text"] == ""
        assert told.types == [t for t in MESSAGE if not t.endswith("delta")]
    items, _ = read(plan(reasoning=True), "<think>a</think>", 3)
    assert [i["type"] for i in items] == ["reasoning", "message"]


def test_reasoning_can_be_left_out() -> None:
    items, told = read(plan(reasoning=True), "<think>so</think>Hello", 2, with_reasoning=False)
    assert told.types == MESSAGE and items[0]["content"][0]["text"] == "Hello"


def test_calls_have_ids_of_their_own() -> None:
    items, _ = read(plan(tools=True), f"{CALL}\n{CUSTOM}", 5)
    assert items[0]["name"] == "look_up" and items[0]["id"].startswith("fc_")
    assert items[0]["arguments"] == '{"city": "Rome <3 [1]"}'
    assert items[1]["input"] == "ls -l\n" and items[1]["id"].startswith("ctc_")
    assert len({items[0]["call_id"], items[1]["call_id"], items[0]["id"], items[1]["id"]}) == 4
