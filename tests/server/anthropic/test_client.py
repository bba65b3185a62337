"""The Anthropic client against a real server and model."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.server.process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {"name": "get_weather", "description": "Weather of a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
    "required": ["city"], "additionalProperties": False}}
GREEDY = {"temperature": 0}  # the client has no parameter for it, servers take it


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=real_server.client.base_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: Anthropic, **fields: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "max_tokens": 40, "messages": QUESTION,
                                     "extra_body": GREEDY} | fields)


def test_a_message(client: Anthropic) -> None:
    [block] = ask(client).content
    assert block.type == "text" and "Paris" in block.text
    message = ask(client, system="You are a helpful assistant.")
    assert message.stop_reason in ("end_turn", "max_tokens") and message.role == "assistant"
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION,
                                           system="You are a helpful assistant.")
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert 0 < usage.output_tokens <= 40


def test_a_stream_equals_the_message(client: Anthropic) -> None:
    whole = ask(client)
    with client.messages.stream(model=MODEL, max_tokens=40, messages=QUESTION,
                                extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in ask(client, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_and_a_prefill(client: Anthropic) -> None:
    stopped = ask(client, stop_sequences=["Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in stopped.content[0].text
    opened = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    assert ask(client, messages=opened, max_tokens=4).content[0].text.startswith(" Paris")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_round_trip_with_a_tool(client: Anthropic, real_server: ServerProcess,
                                  choice: Any) -> None:
    question = [{"role": "user", "content": "How is the weather in Oslo?"}]
    fields = {"messages": question, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 80}
    message = ask(client, **fields)
    [call] = message.content
    assert (message.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.id.startswith("toolu_") and call.input == {"city": "Oslo"}
    with client.messages.stream(model=MODEL, extra_body=GREEDY, **fields) as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        final = stream.get_final_message()
    assert json.loads("".join(pieces)) == final.content[0].input == call.input
    assert final.stop_reason == "tool_use"
    history = [*question, {"role": "assistant", "content": message.content},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                             "content": "Oslo: snow, -7 C"}]}]
    answer = ask(client, messages=history, tools=[WEATHER])
    same = [*question, {"role": "assistant", "content": "", "tool_calls": [{
        "id": "a", "type": "function", "function": {
            "name": "get_weather", "arguments": '{"city": "Oslo"}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": "Oslo: snow, -7 C"}]
    tool = {"type": "function", "function": {
        "name": WEATHER["name"], "description": WEATHER["description"],
        "parameters": WEATHER["input_schema"]}}
    other = real_server.client.post("/v1/chat/completions", {
        "messages": same, "tools": [tool], "temperature": 0, "max_tokens": 40}).json
    assert answer.content[0].text == other["choices"][0]["message"]["content"] != ""


def test_a_json_schema(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
              "required": ["city"], "additionalProperties": False}
    message = ask(client, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(message.content[0].text) in ({"city": "Paris"}, {"city": "Rome"})


def test_errors(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no-such-model"):
        ask(client, model="no-such-model")
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type is 'im"):
        ask(client, messages=[{"role": "user", "content": [{"type": "image", "source": {
            "type": "url", "url": "http://x/y.png"}}]}])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is 0") as caught:
        ask(client, max_tokens=0)
    assert caught.value.request_id


def test_retries_and_keys(real_server: ServerProcess) -> None:
    """A key of either kind goes through; a refusal is not tried again."""
    keyed = Anthropic(base_url=real_server.client.base_url, api_key="none",
                      default_headers={"x-api-key": "another"}, max_retries=2)
    with keyed as client:
        assert ask(client, max_tokens=2).content
        with pytest.raises(anthropic.NotFoundError) as caught:
            ask(client, model="no-such-model")
        assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
