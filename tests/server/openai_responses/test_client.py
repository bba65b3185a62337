"""The OpenAI client's Responses flows against a real server and model."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai import OpenAI

from tests.server.process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"], "additionalProperties": False}
WEATHER: Any = {"type": "function", "name": "get_weather", "description": "Weather of a city.",
                "parameters": CITY, "strict": True}
SUM: Any = {"type": "custom", "name": "calc", "format": {
    "type": "grammar", "syntax": "lark", "definition": 'start: N "+" N\nN: /[0-9]{1,2}/'}}


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_server.client.base_url + "/v1", api_key="none",
                max_retries=0) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{
        "model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 40} | fields)


def test_create_equals_chat(client: OpenAI) -> None:
    response = ask(client, instructions="Be short.")
    chat = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=40, messages=[
            {"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}])
    assert response.output_text == chat.choices[0].message.content
    assert "Paris" in response.output_text and response.status == "completed"
    assert response.usage.input_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION,
                                                  instructions="Be short.")
    assert counted.input_tokens == response.usage.input_tokens


def test_the_stream_accumulates(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0,
                                 max_output_tokens=200, top_logprobs=2,
                                 include=["message.output_text.logprobs"]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == ask(client, max_output_tokens=200).output_text
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert deltas[-1].snapshot == final.output_text
    message: Any = final.output[0]
    assert len(message.content[0].logprobs) == final.usage.output_tokens  # type: ignore[union-attr]
    assert client.responses.retrieve(final.id).output_text == final.output_text


class Answer(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]
    sure: bool


def test_parse(client: OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input=QUESTION, text_format=Answer,
                                    temperature=0)
    assert isinstance(parsed.output_parsed, Answer)
    with client.responses.stream(model=MODEL, input=QUESTION, text_format=Answer,
                                 temperature=0) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    loose = ask(client, text={"format": {"type": "json_object"}}, max_output_tokens=150)
    if loose.status == "completed":
        assert isinstance(json.loads(loose.output_text), dict)
    else:
        assert loose.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stored", [True, False])
def test_tools_there_and_back(client: OpenAI, stored: bool) -> None:
    asked = {"role": "user", "content": "What is the weather in Oslo?"}
    first = ask(client, input=[asked], tools=[WEATHER], tool_choice="required", store=stored)
    [call] = first.output
    assert call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in ("Oslo", "Lima")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Snow, -5 C."}
    if stored:
        second = ask(client, input=[result], previous_response_id=first.id, tools=[WEATHER],
                     tool_choice="none")
    else:
        second = ask(client, input=[asked, call, result], tools=[WEATHER], tool_choice="none")
    assert second.output[0].type == "message" and second.output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [i.type for i in items] == ["message", "function_call", "function_call_output"]


def test_streamed_calls(client: OpenAI) -> None:
    for tool, choice in ((WEATHER, {"type": "function", "name": "get_weather"}),
                         (SUM, {"type": "custom", "name": "calc"}),
                         (WEATHER, {"type": "allowed_tools", "mode": "required", "tools": [
                             {"type": "function", "name": "get_weather"}]})):
        fields: dict[str, Any] = {"model": MODEL, "input": "Do it.", "temperature": 0,
                                  "tools": [tool], "tool_choice": choice}
        whole: Any = client.responses.create(**fields)
        with client.responses.stream(**fields) as stream:
            types = [event.type for event in stream]
            [item] = stream.get_final_response().output
        [expected] = whole.output
        assert item.type == expected.type == f"{'custom_tool' if tool is SUM else 'function'}_call"
        if item.type == "custom_tool_call":
            assert item.input == expected.input and "+" in item.input
            assert "response.custom_tool_call_input.delta" in types
        else:
            assert item.arguments == expected.arguments  # type: ignore[union-attr]
            assert "response.function_call_arguments.delta" in types
        assert types[-1] == "response.completed"


def test_conversation_state(client: OpenAI) -> None:
    first = ask(client, input="My name is Ada.")
    second = ask(client, input="What is my name?", previous_response_id=first.id)
    alone = ask(client, input=[
        {"role": "user", "content": "My name is Ada."},
        *first.output, {"role": "user", "content": "What is my name?"}])
    assert second.output_text == alone.output_text
    client.responses.delete(first.id)
    # what a later one holds of it stays
    assert ask(client, input="And?", previous_response_id=second.id).status
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="web_search"):
        ask(client, tools=[{"type": "web_search"}])
    with pytest.raises(openai.BadRequestError, match="background"):
        ask(client, background=True)
