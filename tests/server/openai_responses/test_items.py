"""Input items in full, and the messages they become."""

from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.server.openai_responses.input_items import input_items, messages_of, turn_starts

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "7"}


def messages(items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return messages_of(input_items(items), instructions)


def test_a_text_is_a_message_of_the_user() -> None:
    [item] = input_items("Hi")
    assert item.pop("id").startswith("msg_")
    assert item == {"type": "message", "status": "completed", "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}]}
    assert messages("Hi", "Be short.") == [{"role": "system", "content": "Be short."},
                                           {"role": "user", "content": "Hi"}]
    assert input_items(None) == []


def test_messages_easy_and_full() -> None:
    found = messages([
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "x", "annotations": []},
            {"type": "refusal", "refusal": "no"}]},
    ])
    assert found == [{"role": "developer", "content": "D"}, {"role": "user", "content": "ab"},
                     {"role": "assistant", "content": "xno"}]


def test_reasoning_text_and_calls_are_one_turn() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "Let me see."},
        CALL, {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "ls"},
        RESULT,
        {"type": "custom_tool_call_output", "call_id": "c2",
         "output": [{"type": "input_text", "text": "out"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
             {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "ls"}}]
    assert messages(items)[1:] == [
        {"role": "assistant", "content": "Let me see.", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "7", "name": "f"},
        {"role": "tool", "tool_call_id": "c2", "content": "out", "name": "g"},
        {"role": "assistant", "content": "Done."}, {"role": "assistant", "content": "Really."},
    ]
    summary = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}],
                "encrypted_content": "x"}, CALL]
    assert messages(summary)[0]["reasoning"] == "s"


def test_items_are_stable() -> None:
    once = input_items([CALL, RESULT, {"role": "user", "content": "Hi"}])
    assert input_items(once) == once


def test_where_a_conversation_can_begin() -> None:
    found = messages([{"role": "developer", "content": "D"}, {"role": "user", "content": "1"},
                      {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},
                      CALL, RESULT, {"role": "user", "content": "4"}], "S")
    assert turn_starts(found) == (2, [4, 7])


@pytest.mark.parametrize(("items", "param"), [
    (7, "input"),
    ({"role": "user", "content": "Hi"}, "input"),
    (["Hi"], "input[0]"),
    ([{}], "input[0].type"),
    ([{"content": "Hi"}], "input[0].type"),
    ([{"type": "web_search_call", "id": "w"}], "input[0].type"),
    ([{"type": ["message"]}], "input[0].type"),
    ([{"type": "item_reference", "id": "msg_1"}], "input[0].id"),
    ([{"id": 3}], "input[0].id"),
    ([{"role": "tool", "content": "Hi"}], "input[0].role"),
    ([{"type": "message", "content": "Hi"}], "input[0].role"),
    ([{"role": "user"}], "input[0].content"),
    ([{"role": "user", "content": 3}], "input[0].content"),
    ([{"role": "user", "content": ["Hi"]}], "input[0].content[0]"),
    ([{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}],
     "input[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_text", "text": "a"},
                                   {"type": "input_file", "file_id": "f"}]}],
     "input[0].content[1].type"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
    ([{"role": "user", "content": "a", "id": 4}], "input[0].id"),
    ([{"role": "user", "content": "a", "status": "done"}], "input[0].status"),
    ([{**CALL, "arguments": "[1]"}], "input[0].arguments"),
    ([{**CALL, "arguments": "{"}], "input[0].arguments"),
    ([{**CALL, "arguments": {"a": 1}}], "input[0].arguments"),
    ([{**CALL, "name": None}], "input[0].name"),
    ([{**CALL, "call_id": None}], "input[0].call_id"),
    ([{**RESULT, "call_id": 1}], "input[0].call_id"),
    ([{**RESULT, "output": {"a": 1}}], "input[0].output"),
    ([{**RESULT, "output": [{"type": "input_image"}]}], "input[0].output[0].type"),
    ([{"type": "custom_tool_call", "call_id": "c", "name": "g"}], "input[0].input"),
    ([{"type": "reasoning", "summary": "s"}], "input[0].summary"),
    ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}],
     "input[0].encrypted_content"),
    ([{"role": "user", "content": "a"}] * 8193, "input"),
], ids=lambda v: str(v)[:40])
def test_bad_items(items: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        input_items(items)
    assert caught.value.param == param and param in caught.value.message


def test_ids_and_names_of_calls_may_be_empty() -> None:
    given = [{"type": "function_call", "id": "", "call_id": "", "name": "", "arguments": ""},
             {"type": "function_call_output", "output": "42"},
             {"type": "custom_tool_call_output", "id": "", "call_id": None, "output": "x"}]
    items = input_items(given)
    assert [item["call_id"] for item in items] == ["", "", ""]
    assert len({item["id"] for item in items}) == 3 and all(item["id"] for item in items)
    call, first, second = messages_of(items, None)
    assert call["tool_calls"][0]["function"] == {"name": "", "arguments": ""}
    assert (first["content"], second["content"]) == ("42", "x")
