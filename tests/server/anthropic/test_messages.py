"""/v1/messages over the scripted engine: blocks, events in order, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.server.anthropic.blocks import BlockStream, event_bytes
from octavo.server.protocol.anthropic import (
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    StopDelta,
)
from octavo.testing.fake_async_llm import FakeEngine, fake_async_llm
from octavo.tools.formats import reasoning_format, tool_format
from octavo.tools.parser import OutputParser
from tests.server.conftest import serving, wait_for
from tests.server.http_client import Answer, HttpClient, read_until

TOOL = {"name": "look_up", "description": "Finds.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return fake_async_llm(max_model_len=4096, num_blocks=1024)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[HttpClient]:
    with serving(engine, ServerSection(reasoning_parser="think")) as client:
        yield client


def ask(client: HttpClient, said: str = "SAY:Hello|", **fields: Any) -> Answer:
    body = {"model": "fake-model", "max_tokens": 200,
            "messages": [{"role": "user", "content": said}], **fields}
    return client.post("/v1/messages", {k: v for k, v in body.items() if v is not None})


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """The events, each with the same name on both of its lines."""
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for chunk in answer.text.split("\n\n")[:-1]:
        name, data = chunk.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message a stream makes, its rules checked."""
    assert events[0]["type"] == "message_start" and events[1] == {"type": "ping"}
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    message, is_open = events[0]["message"], False
    assert message["content"] == [] and message["stop_reason"] is None
    inputs: list[str] = []
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            is_open = True
            inputs.append("")
        elif event["type"] == "content_block_stop":
            assert is_open and event["index"] == len(message["content"]) - 1
            is_open = False
        else:
            assert event["type"] == "content_block_delta"
            assert is_open and event["index"] == len(message["content"]) - 1
            delta, block = event["delta"], message["content"][-1]
            kind = {"text_delta": "text", "thinking_delta": "thinking",
                    "input_json_delta": "partial_json"}[delta["type"]]
            assert delta[kind]
            if kind == "partial_json":
                inputs[-1] += delta[kind]
            else:
                block[kind] += delta[kind]
    assert not is_open
    for block, text in zip(message["content"], inputs, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    message |= events[-2]["delta"]
    message["usage"] |= events[-2]["usage"]
    return message


@pytest.mark.parametrize(("said", "fields", "content", "reason", "sequence"), [
    ("SAY:Hi 漢🙂|", {}, [("text", "Hi 漢🙂")], "end_turn", None),
    ("SAY:one STOP two|", {"stop_sequences": ["STOP", "x"]}, [("text", "one ")], "stop_sequence",
     "STOP"),
    ("SAY:a long text|", {"max_tokens": 6}, [("text", "a long")], "max_tokens", None),
    ("SAY:<think>Well.</think>Hi|", {}, [("thinking", "Well."), ("text", "Hi")], "end_turn", None),
    ("SAY:<think>Well.</think>Hi|", {"thinking": {"type": "disabled"}}, [("text", "Hi")],
     "end_turn", None),
    ("SAY:<think>Well.</think>Hi|", {"thinking": {
        "type": "enabled", "budget_tokens": 1024, "display": "omitted"}}, [("text", "Hi")],
     "end_turn", None),
    ("SAY:|", {}, [("text", "")], "end_turn", None),
], ids=["text", "stop", "length", "thinking", "disabled", "omitted", "nothing"])
def test_answers(client: HttpClient, said: str, fields: dict[str, Any],
                 content: list[tuple[str, str]], reason: str, sequence: str | None) -> None:
    answer = ask(client, said, **fields)
    assert answer.status == 200, answer.text
    whole = answer.json
    assert [(b["type"], b[b["type"]]) for b in whole["content"]] == content
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert whole["type"] == "message" and whole["role"] == "assistant"
    assert whole["id"].startswith("msg-") and whole["model"] == "fake-model"
    streamed = rebuilt(events_of(ask(client, said, stream=True, **fields)))
    for message in (whole, streamed):
        del message["id"]
        usage = message["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")  # the second finds the first
    assert streamed == whole


def test_the_window_ends_the_answer(client: HttpClient) -> None:
    """max_tokens beyond the context is no mistake here."""
    answer = ask(client, "no end", max_tokens=1_000_000).json
    assert answer["stop_reason"] == "model_context_window_exceeded"
    usage = answer["usage"]
    assert sum(usage.values()) >= 4095 and usage["cache_creation_input_tokens"] == 0


def test_prompts(client: HttpClient) -> None:
    """What reaches the model is what the same conversation in the other API makes."""
    def count(**fields: Any) -> int:
        answer = client.post("/v1/messages/count_tokens", {"model": "fake-model", **fields})
        assert answer.status == 200 and list(answer.json) == ["input_tokens"], answer.text
        return answer.json["input_tokens"]

    def chat(messages: list[Any], **fields: Any) -> int:
        return client.post("/tokenize", {"messages": messages, **fields}).json["count"]

    call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    user = {"role": "user", "content": "Hi"}
    plain = [{"role": "system", "content": "Be short."}, user]
    assert count(system="Be short.", messages=[user]) == chat(plain)
    blocks = [{"type": "text", "text": "Be"}, {"type": "text", "text": "short.",
                                              "cache_control": {"type": "ephemeral"}}]
    assert count(system=blocks, messages=[user]) == chat(
        [{"role": "system", "content": "Be\n\nshort."}, user])
    history = [user, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Ok"}, call]},
        {"role": "user", "content": [
            result | {"content": [{"type": "text", "text": "no"}], "is_error": True},
            {"type": "text", "text": "And?"}]}]
    same = [user, {"role": "assistant", "content": "Ok", "tool_calls": [
        {"id": "1", "type": "function", "function": {
            "name": "look_up", "arguments": '{"city": "Oslo"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "Error: no"},
        {"role": "user", "content": "And?"}]
    assert count(messages=history) == chat(same)
    assert count(messages=[user], tools=[TOOL]) == chat([user], tools=[
        {"type": "function", "function": {"name": "look_up", "description": "Finds.",
                                          "parameters": TOOL["input_schema"]}}])
    opened = [user, {"role": "assistant", "content": "It is ("}]
    assert count(messages=opened) == chat(opened, continue_final_message=True)


USER = {"role": "user", "content": "Hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def _one(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize(("fields", "words"), [
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"messages": []}, "messages is empty"),
    ({"messages": None}, "messages is missing"),
    ({"messages": ["x"]}, "messages[0] is a str"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is 'tool'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    (_one({"type": "text", "text": "a"}, IMAGE), "messages[0].content[1].type is 'image'"),
    (_one({"type": "document"}), "messages[0].content[0].type is 'document'"),
    (_one({"type": "server_tool_use"}, role="assistant"), "content[0].type is 'server_tool_use'"),
    (_one({"type": "tool_use"}), "here stand text, tool_result blocks"),
    (_one({"type": "text"}), "messages[0].content[0].text is None"),
    (_one({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id"),
    (_one({"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}),
     "messages[0].content[0].content[0].type is 'image'"),
    (_one({"type": "tool_use", "id": "a", "name": "b", "input": "{}"}, role="assistant"),
     "messages[0].content[0].input"),
    (_one({"type": "tool_use", "id": "a", "name": "b", "input": {}}, role="assistant"),
     "ends with a tool_use"),
    ({"system": 3}, "system is a int"),
    ({"system": [IMAGE]}, "system[0].type is 'image'"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"temperature": -1}, "temperature is -1"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name is 'a b'"),
    ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice names 'b'"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
    ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice is 'auto'"),
    ({"thinking": {"type": "x"}}, "thinking.type is 'x'"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format is"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
     "output_config.format"),
    ({"output_config": {"effort": "none"}}, "output_config.effort is 'none'"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema is missing"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not accepted"),
    ({"container": "x"}, "container is not accepted"),
    ({"n": 2}, "n is 2"),
    ({"prompt_logprobs": 1}, "prompt_logprobs has no place"),
])
def test_refusals(client: HttpClient, fields: dict[str, Any], words: str) -> None:
    answer = ask(client, **fields)
    assert answer.status == 400, answer.text
    body = answer.json
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"], body
    assert body["request_id"] == answer.headers["x-request-id"]


def test_what_is_let_through(client: HttpClient) -> None:
    answer = client.post("/v1/messages?beta=true", {
        "model": "alias/fake", "max_tokens": 9, "messages": [USER], "top_k": 5, "top_p": 0.9,
        "metadata": {"user_id": "u"}, "service_tier": "auto", "min_p": 0.1, "seed": 3,
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}, "unknown": 1,
        "temperature": 0.5, "context_management": {}, "repetition_penalty": 1.1},
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x"})
    assert answer.status == 200 and answer.json["model"] == "alias/fake"


def test_other_errors(client: HttpClient) -> None:
    unknown = client.post("/v1/messages", {"model": "x", "max_tokens": 1, "messages": [USER]})
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")
    method = client.get("/v1/messages")
    assert (method.status, method.json["type"]) == (405, "error")
    route = client.post("/v1/messages/batches", {})
    assert (route.status, route.json["error"]["type"]) == (404, "not_found_error")
    broken = client.post("/v1/messages", "{")
    assert (broken.status, broken.json["error"]["type"]) == (400, "invalid_request_error")
    small = ServerSection(api_keys=("right",), max_body_bytes=300)
    with serving(fake_async_llm(), small) as guarded:
        body = {"model": "fake-model", "max_tokens": 1, "messages": [USER]}
        for headers in ({}, {"x-api-key": "wrong"}):
            refused = guarded.post("/v1/messages", body, headers=headers)
            assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")
        for headers in ({"x-api-key": "right"}, {"authorization": "Bearer right"},
                        {"x-api-key": "right", "authorization": "Bearer other"}):
            assert guarded.post("/v1/messages", body, headers=headers).status == 200
        large = guarded.post("/v1/messages", body | {"system": "x" * 300},
                             headers={"x-api-key": "right"})
        assert (large.status, large.json["error"]["type"]) == (413, "request_too_large")


def test_a_loading_server_asks_to_come_back() -> None:
    with serving(fake_async_llm(hold_loading=True)) as client:
        answer = ask(client)
        assert (answer.status, answer.json["error"]["type"]) == (503, "overloaded_error")
        assert answer.headers["retry-after"]


def test_a_failure_in_mid_stream_is_an_error_event() -> None:
    with serving(fake_async_llm()) as client:
        events = events_of(ask(client, "FAULT-AT-5", stream=True))
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "overloaded_error"
        assert "message_stop" not in [e["type"] for e in events]


def test_a_full_queue_is_429() -> None:
    engine = fake_async_llm(max_num_seqs=1, max_num_waiting=1)
    with serving(engine) as client:
        engine.executor.run.clear()
        with client.open_raw("/v1/completions", {"prompt": "Hi", "n": 2, "max_tokens": 2}) as sock:
            wait_for(lambda: engine.llm.num_unfinished_requests == 1)
            answer = ask(client)
            assert (answer.status, answer.json["error"]["type"]) == (429, "rate_limit_error")
            assert int(answer.headers["retry-after"]) > 0
            engine.executor.run.set()
            read_until(sock, b"usage")


def _sized(text: str, size: int) -> list[str]:
    return [text[i:i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_with_calls(size: int) -> None:
    """The scripted engine has no grammar, so that calls are tested without it."""
    parser = OutputParser(tool_format=tool_format("hermes", None, takes_tools=True),
                          tool_names=["look_up"], prompt="",
                          reasoning=reasoning_format("think", None))
    output = f"<think>Hm.</think>Let me see. {CALL}\n{CALL}"
    stream, events = BlockStream(with_thinking=True), []
    for piece in _sized(output, size):
        events += stream.news(parser.feed(piece))
    events += [*stream.news(parser.finish()), *stream.end()]
    start = Message(id="m", model="m", content=[],
                    usage=MessagesUsage(input_tokens=1, output_tokens=0))
    stop = StopDelta(stop_reason="tool_use", stop_sequence=None)
    events = [MessageStart(message=start), Ping(), *events,
              MessageDelta(delta=stop, usage=start.usage), MessageStop()]
    content = rebuilt([json.loads(event_bytes(e).partition(b"data: ")[2]) for e in events]
                      )["content"]
    assert [b["type"] for b in content] == ["thinking", "text", "tool_use", "tool_use"]
    assert content[0]["thinking"] == "Hm." and content[1]["text"].startswith("Let me see.")
    for call in content[2:]:
        assert call["id"].startswith("toolu_") and len(call["id"]) > 10
        assert (call["name"], call["input"]) == ("look_up", {"city": "Oslo"})
    assert content[2]["id"] != content[3]["id"]
