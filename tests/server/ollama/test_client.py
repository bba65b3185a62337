"""The Ollama client against a real server and model."""

import json
from typing import Any

import ollama
import pytest

from tests.server.process import ServerProcess

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 40}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"]}}}


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> ollama.Client:
    return ollama.Client(host=real_server.client.base_url)


def test_chat_and_its_stream(client: ollama.Client) -> None:
    whole = client.chat(MODEL, QUESTION, options=GREEDY)
    assert "Paris" in (whole.message.content or "") and whole.done_reason in ("stop", "length")
    *pieces, end = client.chat(MODEL, QUESTION, options=GREEDY, stream=True)
    assert "".join(p.message.content or "" for p in pieces) == whole.message.content
    assert end.done and end.eval_count == whole.eval_count
    assert end.prompt_eval_count == whole.prompt_eval_count


def test_generate(client: ollama.Client) -> None:
    first = client.generate(MODEL, "What is the capital of France?", options=GREEDY)
    assert "Paris" in first.response and first.context
    more = client.generate(MODEL, "And of Italy?", context=first.context, options=GREEDY)
    assert more.response and (more.prompt_eval_count or 0) > len(first.context)
    raw = client.generate(MODEL, "The capital of France is", raw=True, options=GREEDY)
    assert "Paris" in raw.response
    streamed = client.generate(MODEL, "The capital of France is", raw=True, options=GREEDY,
                               stream=True)
    assert "".join(p.response for p in streamed) == raw.response


def test_formats(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
              "required": ["city"]}
    answer = client.chat(MODEL, QUESTION, format=schema, options=GREEDY)
    assert json.loads(answer.message.content or "")["city"] in ("Paris", "Rome")
    loose = client.generate(MODEL, "A JSON object, please", format="json",
                            options={"temperature": 0, "num_predict": 48})
    assert loose.response.startswith("{")


def test_tools(client: ollama.Client, real_server: ServerProcess) -> None:
    """What the model decides is its own affair; behind the result of a call it answers as it does
    in the other API."""
    question = [{"role": "user", "content": "What is the weather in Oslo right now?"}]
    options = {"temperature": 1.5, "num_predict": 60}
    for seed in range(2):
        answer = client.chat(MODEL, question, tools=[WEATHER], options=options | {"seed": seed})
        lines = list(client.chat(MODEL, question, tools=[WEATHER], stream=True,
                                 options=options | {"seed": seed}))
        calls = [c for line in lines for c in line.message.tool_calls or []]
        assert calls == list(answer.message.tool_calls or [])
        assert all(c.function.name == "get_weather" for c in calls)
    call: Any = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    history = [*question, {"role": "assistant", "content": "", "tool_calls": [call]},
               {"role": "tool", "tool_name": "get_weather", "content": "Oslo: snow, -7 C"}]
    assert client.chat(MODEL, history, tools=[WEATHER], options=GREEDY).message.content
    # the client writes schemas anew, in another order: this comparison goes without it
    answer = real_server.client.post("/api/chat", {
        "model": MODEL, "messages": history, "tools": [WEATHER], "options": GREEDY,
        "stream": False}).json
    same = [*question, {"role": "assistant", "content": "", "tool_calls": [{
        "id": "a", "type": "function", "function": {
            "name": "get_weather", "arguments": '{"city": "Oslo"}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": "Oslo: snow, -7 C"}]
    other = real_server.client.post("/v1/chat/completions", {
        "messages": same, "tools": [WEATHER], "temperature": 0, "max_tokens": 40}).json
    assert answer["message"]["content"] == other["choices"][0]["message"]["content"] != ""


def test_listings(client: ollama.Client) -> None:
    models = client.list().models
    assert f"{MODEL}:latest" in [m.model for m in models]
    card = models[0]
    assert card.size and card.size > 50_000_000 and card.details
    assert (card.details.format, card.details.family) == ("gguf", "llama")
    assert card.details.parameter_size == "134.52M"
    shown = client.show(f"{MODEL}:latest")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo and shown.modelinfo["llama.block_count"] == 30
    assert f"{MODEL}:latest" in [m.model for m in client.ps().models]


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat("no-such-model", QUESTION)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        list(client.chat(MODEL, QUESTION, think=True, stream=True))
    with pytest.raises(ollama.ResponseError, match="not offered"):
        client.pull("llama3")
    with pytest.raises(ollama.ResponseError, match="no route"):
        client.embed(MODEL, "text")
