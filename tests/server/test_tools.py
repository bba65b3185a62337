"""Tools with the OpenAI client over a real socket, on the real model: every way to ask."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.server.process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "What is the weather in Oslo right now?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock_now", "description": "The hour."}}
SUM = {"type": "custom", "custom": {"name": "calc", "format": {"type": "grammar", "grammar": {
    "syntax": "lark", "definition": 'start: N "+" N\nN: /[0-9]{1,2}/'}}}}


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_server.client.base_url + "/v1", api_key="none",
                max_retries=0) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{
        "model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 80} | fields)


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or []]


def streamed(client: OpenAI, **fields: Any) -> tuple[str | None, list[tuple[str, str]], str, Any]:
    """(content, calls, finish_reason, usage) of a stream, its rules checked."""
    content, calls, ids, reason, usage = None, [], [], None, None
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert reason is None
            reason = choice.finish_reason
            if choice.delta.content is not None:
                content = (content or "") + choice.delta.content
            for call in choice.delta.tool_calls or []:
                if call.id is not None:  # id, type and name come first, and once
                    assert call.index == len(calls) and call.type == "function"
                    calls.append([call.function.name, ""])
                    ids.append(call.id)
                assert call.index == len(calls) - 1
                calls[-1][1] += call.function.arguments
    assert len(set(ids)) == len(ids) and all(i.startswith("call_") for i in ids)
    return content, [(n, a) for n, a in calls], reason or "", usage


@pytest.mark.parametrize(("choice", "name"), [
    ("required", "get_weather"),
    ({"type": "function", "function": {"name": "clock_now"}}, "clock_now"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "clock_now"}}]}}, "clock_now"),
], ids=["required", "named", "allowed"])
def test_forced(client: OpenAI, choice: Any, name: str) -> None:
    fields = {"tools": [WEATHER, CLOCK], "tool_choice": choice}
    answer = ask(client, **fields)
    [got] = answer.choices
    assert got.finish_reason == "tool_calls" and got.message.content is None
    [(called, arguments)] = calls_of(got.message)
    assert called == name
    assert json.loads(arguments) == ({} if name == "clock_now" else {"city": "Oslo"})
    content, calls, reason, usage = streamed(client, **fields)
    assert (content, calls, reason) == (None, [(called, arguments)], "tool_calls")
    assert usage.completion_tokens == answer.usage.completion_tokens


def test_auto_is_text_or_whole_calls(client: OpenAI) -> None:
    """What it decides is the model's own affair; a biased first token makes it call."""
    text = ask(client, tools=[WEATHER], max_tokens=24)
    assert text.choices[0].message.content and not text.choices[0].message.tool_calls
    assert text.choices[0].finish_reason in ("stop", "length")
    prefix = [*QUESTION, {"role": "assistant", "content": "Let me see. <tool_call>"}]
    seen = set()
    for seed in range(3):
        answer = ask(client, tools=[WEATHER, CLOCK], temperature=1.5, seed=seed, max_tokens=120,
                     messages=prefix[:-1], logit_bias={"44": 12})  # "<"
        for name, arguments in calls_of(answer.choices[0].message):
            seen.add(name)
            if answer.choices[0].finish_reason != "length":
                json.loads(arguments)
    assert seen <= {"get_weather", "clock_now"}


def test_parallel_calls(client: OpenAI) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": True,
              "max_tokens": 75}
    whole = ask(client, **fields).choices[0]
    assert len(calls_of(whole.message)) >= 2
    _, calls, reason, _ = streamed(client, **fields)
    assert (calls, reason) == (calls_of(whole.message), whole.finish_reason)


def test_a_cut_call(client: OpenAI) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 22}
    whole = ask(client, **fields).choices[0]
    [(name, arguments)] = calls_of(whole.message)
    assert whole.finish_reason == "length" and '{"city": "Oslo"}'.startswith(arguments)
    assert streamed(client, **fields)[1:3] == ([(name, arguments)], "length")


def test_custom_tools(client: OpenAI) -> None:
    fields = {"tools": [WEATHER, SUM], "tool_choice": {"type": "custom", "custom": {
        "name": "calc"}}, "messages": [{"role": "user", "content": "What is 2+3?"}]}
    got = ask(client, **fields).choices[0]
    [call] = got.message.tool_calls
    assert call.type == "custom" and call.custom.name == "calc" and "+" in call.custom.input
    pieces = [c.custom for chunk in ask(client, stream=True, **fields) for x in chunk.choices
              for c in x.delta.tool_calls or []]
    assert pieces[0]["name"] == "calc"
    assert "".join(p["input"] for p in pieces) == call.custom.input
    history = [*fields["messages"], got.message.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    assert ask(client, **fields | {"messages": history, "tool_choice": "none"}
               ).choices[0].message.content


def test_many_turns(client: OpenAI) -> None:
    """The result of a call reaches the model, and the first turns come from the prefix cache."""
    first = ask(client, tools=[WEATHER], tool_choice="required")
    message = first.choices[0].message
    history = [*QUESTION, message.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": message.tool_calls[0].id,
                "content": "Oslo: snow, -7 C"}]
    answer = ask(client, messages=history, tools=[WEATHER], max_tokens=4)
    assert answer.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 16 * 16
    # what a model of this size makes of it is chance
    rendered: Any = client.post("/chat/completions/render", cast_to=object, body={
        "messages": history, "tools": [WEATHER]})
    assert "<tool_response>\nOslo: snow, -7 C\n</tool_response>" in rendered["prompt"]
    assert rendered["count"] == answer.usage.prompt_tokens


def test_samples_and_logprobs(client: OpenAI) -> None:
    answer = ask(client, tools=[WEATHER, CLOCK], tool_choice="required", n=3, temperature=1.5,
                 seed=5, logprobs=True, top_logprobs=1, presence_penalty=0.5)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        [(name, arguments)] = calls_of(choice.message)
        assert choice.finish_reason == "tool_calls"
        assert json.loads(arguments).get("city") in (
            ("Oslo", "Lima") if name == "get_weather" else (None,))
    tokens = sum(len(c.logprobs.content) for c in answer.choices)
    assert tokens == answer.usage.completion_tokens
    ids = {c.message.tool_calls[0].id for c in answer.choices}
    assert len(ids) == 3


def test_content_or_calls_with_a_response_format(client: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
        "additionalProperties": False}}}
    got = ask(client, tools=[WEATHER], response_format=form).choices[0].message
    if got.tool_calls:
        assert json.loads(calls_of(got)[0][1])["city"] in ("Oslo", "Lima")
    else:
        assert set(json.loads(got.content)) == {"ok"}


def test_older_names(client: OpenAI) -> None:
    fields = {"functions": [WEATHER["function"]], "function_call": {"name": "get_weather"}}
    got = ask(client, **fields).choices[0]
    assert got.finish_reason == "function_call" and got.message.tool_calls is None
    assert json.loads(got.message.function_call.arguments) == {"city": "Oslo"}
    deltas = [c.choices[0].delta.function_call for c in ask(client, stream=True, **fields)
              if c.choices and c.choices[0].delta.function_call]
    assert deltas[0].name == "get_weather"
    assert "".join(d.arguments for d in deltas) == got.message.function_call.arguments
    history = [*QUESTION, got.message.model_dump(exclude_none=True),
               {"role": "function", "name": "get_weather", "content": "snow"}]
    assert ask(client, messages=history, functions=fields["functions"]).choices


THINKING = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}"""


@pytest.fixture(scope="module")
def thinker(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """The model behind a template that opens <think> itself."""
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(THINKING)
    with ServerProcess("smollm2-135m", "--chat-template", str(template), "--kv-cache-memory-bytes",
                       "64m",
                       "--enable-auto-tool-choice", "--disable-log-requests") as server:
        server.wait_ready()
        with OpenAI(base_url=server.client.base_url + "/v1", api_key="x", max_retries=0) as client:
            yield client


def test_reasoning(thinker: OpenAI) -> None:
    """Only reasoning, as the model never closes the tag; with tools and a form it must go on."""
    got = ask(thinker, max_tokens=8)
    message = got.choices[0].message
    assert message.content is None and message.reasoning == message.reasoning_content != ""
    assert got.usage.completion_tokens_details.reasoning_tokens == got.usage.completion_tokens == 8
    pieces = [c.choices[0].delta for c in ask(thinker, max_tokens=8, stream=True) if c.choices]
    assert "".join(getattr(d, "reasoning", "") for d in pieces) == message.reasoning
    hidden = ask(thinker, max_tokens=8, extra_body={"include_reasoning": False})
    assert not hasattr(hidden.choices[0].message, "reasoning")
    off = ask(thinker, max_tokens=8, reasoning_effort="none")
    assert off.choices[0].message.content
    assert off.usage.completion_tokens_details.reasoning_tokens == 0


def test_reasoning_then_a_form(thinker: OpenAI) -> None:
    """The grammar waits for the closing tag: a bias towards "</" brings it soon."""
    form = {"response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"enum": ["yes", "no"]}}}}
    calls = {"tools": [WEATHER], "tool_choice": "required"}
    for fields in (form, calls):
        off = ask(thinker, reasoning_effort="none", **fields).choices[0].message
        assert off.content in ('"yes"', '"no"') or calls_of(off)
        on = ask(thinker, max_tokens=6, **fields).choices[0]
        assert on.finish_reason == "length" and on.message.reasoning
        assert on.message.content is None and not on.message.tool_calls


def test_calls_as_xml() -> None:
    """On a model that is held to another family's form: the API shows no difference."""
    days = {"type": "object", "required": ["city", "days"], "properties": {
        "city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}}}
    tool = {"type": "function", "function": {"name": "forecast", "parameters": days}}
    fields = {"tools": [tool], "tool_choice": "required", "max_tokens": 90}
    with ServerProcess("smollm2-135m", "--tool-call-parser", "qwen3_coder", "--max-model-len",
                       "1024", "--kv-cache-memory-bytes", "64m") as server:
        server.wait_ready()
        with OpenAI(base_url=server.client.base_url + "/v1", api_key="none") as client:
            whole = ask(client, **fields).choices[0]
            content, calls, reason, _ = streamed(client, **fields)
    [(name, arguments)] = calls_of(whole.message)
    assert (whole.finish_reason, whole.message.content, name) == ("tool_calls", None, "forecast")
    found = json.loads(arguments)
    assert len(found["city"]) <= 12 and found["days"] <= 9 and len(found) == 2
    assert (content, calls, reason) == (None, [(name, arguments)], "tool_calls")
