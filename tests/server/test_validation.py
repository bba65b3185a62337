"""Everything a client may get wrong: 400, the error object, the field's name; nothing hangs."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.errors import InvalidRequestError
from octavo.server.messages import ROLES
from octavo.server.protocol.decode import decode_object
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient

COMPLETION = {"prompt": "Hello", "max_tokens": 4}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm(), ServerSection(max_body_bytes=1 << 20)) as client:
        yield client


@pytest.fixture(autouse=True)
def still_serves(client: HttpClient) -> Iterator[None]:
    """After every test: the server answers."""
    yield
    assert client.complete("Hello", max_tokens=1).status == 200


BOTH: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2.0}, "top_p"),
    ({"top_p": -0.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"seed": 10**20}, "seed"),
    ({"seed": "100"}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"max_tokens": -15335}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 10**8}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop": [f"s{i}" for i in range(5000)]}, "stop"),
    ({"stop_token_ids": [99999]}, "stop_token_ids"),
    ({"logit_bias": {"robot": -50}}, "logit_bias"),
    ({"logit_bias": {"-1": 5}}, "logit_bias"),
    ({"logit_bias": {"99999999": 5, "7": 1}}, "logit_bias"),
    ({"logit_bias": {"7": 1000}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [1 << 40]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": "yes"}, "stream"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
     "response_format"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs"),
    ({"structured_outputs": {"json": {"type": "stringg"}}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"guided_json": []}, "guided_json"),
    ({"guided_regex": "(?=a)"}, "guided_regex"),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
    ({"priority": 3}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"request_id": "a\nb"}, "request_id"),
]


@pytest.mark.parametrize(("fields", "param"), BOTH, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION),
                                            ("/v1/chat/completions", CHAT)], ids=["text", "chat"])
def test_bad_field(client: HttpClient, path: str, body: dict[str, Any], fields: dict[str, Any],
                   param: str) -> None:
    answer = client.post(path, body | fields)
    assert answer.status == 400
    error = answer.error()
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.partition("[")[0] in error["message"]


@pytest.mark.parametrize(("fields", "param"), [
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -2}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"best_of": 1, "n": 3}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": ["a", 3]}, "prompt"),
    ({"prompt": [-1]}, "prompt_token_ids"),
    ({"prompt": [5, 5279552648203111001]}, "prompt_token_ids"),
], ids=lambda v: str(v)[:40])
def test_bad_completion_field(client: HttpClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/completions", COMPLETION | fields)
    assert answer.status == 400
    assert answer.error()["param"] == param


@pytest.mark.parametrize("text", [r"\ud800", r"x \uDC00", r"\ud800 and more", r"\\\uDFFF"])
def test_half_a_character_is_named(text: str) -> None:
    half = re.findall(r"\\u[dD]\w{3}", text)[0]
    body = '{"prompt": "\\ud83d\\ude00 \\\\ud801 %s"}'
    with pytest.raises(InvalidRequestError, match="lone surrogate") as refused:
        decode_object((body % text).encode())
    assert half in refused.value.message
    assert "prompt" in decode_object((body % "").encode())
    with pytest.raises(InvalidRequestError, match="truncated"):
        decode_object(rb'{"prompt": "\\ud800')


@pytest.mark.parametrize("fields", [
    {"top_p": 0}, {"top_p": 0.0}, {"stream_options": {}}, {"stream_options": {"x": 1}},
    {"n": 1.0, "max_tokens": 4.0, "seed": 5.0, "stop_token_ids": [1.0]},
    {"stream_options": {"include_usage": False}},
], ids=str)
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION),
                                            ("/v1/chat/completions", CHAT)], ids=["text", "chat"])
def test_good_field(client: HttpClient, path: str, body: dict[str, Any],
                    fields: dict[str, Any]) -> None:
    """What other servers take, and what says nothing."""
    plain, answer = (client.post(path, body | more).json for more in ({}, fields))
    for name in ("prompt_tokens", "completion_tokens"):
        assert answer["usage"][name] == plain["usage"][name]


def test_top_p_of_zero_takes_the_most_likely_token(client: HttpClient) -> None:
    """It is the limit of small ones."""
    found = [client.complete("Hi", top_p=p, seed=1).json["choices"][0]["text"] for p in (0, 1e-9)]
    assert found[0] == found[1]


def test_prompt_of_null(client: HttpClient) -> None:
    """The beginning of a document; a prompt that is not there at all is a mistake."""
    null, first = (client.complete(p, return_token_ids=True, max_tokens=4).json
                   for p in (None, [256]))
    empty = client.complete("", return_token_ids=True, max_tokens=4).json
    assert empty["choices"][0]["prompt_token_ids"] == [256]
    assert null["choices"][0]["prompt_token_ids"] == [256]
    assert null["usage"] == first["usage"]
    assert client.post("/v1/completions", {"max_tokens": 4}).error()["param"] == "prompt"


def test_max_tokens_of_zero(client: HttpClient) -> None:
    """Nothing is generated, and nothing counted."""
    answer = client.complete("Hi", max_tokens=0).json
    assert answer["choices"][0]["text"] == "" and answer["usage"]["completion_tokens"] == 0
    assert answer["choices"][0]["finish_reason"] == "length"


def test_result_of_a_function_that_gave_nothing(client: HttpClient) -> None:
    """The older API lets its content be null."""
    messages = [{"role": "user", "content": "Hi"},
                {"role": "function", "name": "f", "content": None}]
    assert client.post("/v1/chat/completions", CHAT | {"messages": messages}).status == 200


def test_token_ids_with_a_fraction_of_zero(client: HttpClient) -> None:
    """In JSON, 72.0 and 72 are the same number."""
    for prompt in ([72.0, 105], [[72.0, 105], [72, 105.0]]):
        answer = client.complete(prompt, return_token_ids=True, max_tokens=4).json
        assert all(c["prompt_token_ids"] == [72, 105] for c in answer["choices"])
    assert client.complete([72.5]).error()["param"] == "prompt"
    assert client.complete("Hi", n=1.5).error()["param"] == "n"


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(("fields", "param"), [
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"content": "no role"}]}, "messages[0].role"),
    ({"messages": [{"role": "usr", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "Hi"}, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "system", "content": None}]}, "messages[0].content"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": None}, "messages"),
    ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
     "tools[0].function.parameters.type"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"not": {}}}}}}]}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "f", "format": {
        "type": "grammar", "grammar": {
        "syntax": "lark", "definition": "start: x"}}}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "none", "tools": [TOOL]}}}, "tool_choice.allowed_tools.mode"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": []}}}, "tool_choice.allowed_tools.tools"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"functions": [{"name": "f g"}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"messages": [{"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {
        "name": "f", "arguments": "{'a': 1"}}]}]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [{"role": "tool", "tool_call_id": 3, "content": "x"}]},
     "messages[0].tool_call_id"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
], ids=lambda v: str(v)[:40])
def test_bad_chat_field(client: HttpClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/chat/completions", CHAT | fields)
    assert answer.status == 400
    assert answer.error()["param"] == param


@pytest.mark.parametrize("body", [
    b"", b"[]", b"3", b"{", b'{"prompt":"x", x}', b'{"prompt":"hi \xff\xfe"}',
    b'{"prompt":"\\ud83c"}', b'{"prompt":"x","temperature":Infinity}',
    b'{"prompt":"x","temperature":1e999}', b'{"prompt":"x","temperature":NaN}',
    b'{"prompt":' + b"[" * 200_000, b'{"a":' * 100_000,
], ids=lambda b: repr(b[:30]))
def test_bad_body(client: HttpClient, body: bytes) -> None:
    answer = client.post("/v1/completions", body)
    assert answer.status == 400
    answer.error()


def test_too_long_prompt_is_refused_before_the_stream(client: HttpClient) -> None:
    for stream in (False, True):
        answer = client.complete("x" * 1000, stream=stream)
        assert answer.status == 400
        error = answer.error()
        assert error["code"] == "context_length_exceeded"
        assert "1000" in error["message"] and "512" in error["message"]
        answer = client.chat("x" * 1000, stream=stream)
        assert (answer.status, answer.error()["code"]) == (400, "context_length_exceeded")


def test_more_sequences_than_ever_fit_are_refused_before_any_runs(client: HttpClient) -> None:
    # 64 run and 4096 wait: 33 x 128 can never be taken, so no later try would help
    finished = client.metric('octavo:request_success_total')
    for fields in ({"prompt": ["a"] * 33, "n": 128}, {"prompt": ["a"] * 33, "n": 128,
                                                      "stream": True}):
        answer = client.post("/v1/completions", fields)
        assert answer.status == 400
        error = answer.error()
        assert error["param"] == "n"
        for part in ("33 prompts", "n=128", "4224", "64", "4096", "4160"):
            assert part in error["message"]
    assert client.metric('octavo:request_success_total') == finished
    with serving(fake_async_llm(max_num_seqs=2, max_num_waiting=3)) as few:
        answer = few.complete(["a"] * 6, max_tokens=1)
        assert (answer.status, answer.error()["param"]) == (400, "prompt")
        assert few.complete(["a"] * 3, max_tokens=1).status == 200


def test_one_bad_prompt_of_a_list_starts_nothing(client: HttpClient) -> None:
    finished = client.metric('octavo:request_success_total')
    assert client.complete(["good", "x" * 1000]).status == 400
    assert client.metric("octavo:num_requests_running") == 0
    assert client.metric('octavo:request_success_total') == finished


def test_body_over_the_limit(client: HttpClient) -> None:
    answer = client.post("/v1/completions", {"prompt": "x" * (1 << 20)})
    assert (answer.status, answer.error()["code"]) == (413, "request_too_large")


def test_nulls_count_as_absent(client: HttpClient) -> None:
    nulls = ("temperature", "max_tokens", "top_p", "n", "stop", "seed", "logit_bias", "user",
             "stream", "stream_options", "logprobs", "top_logprobs", "response_format", "tools",
             "tool_choice")
    answer = client.chat("Hi", max_completion_tokens=6, **dict.fromkeys(nulls))
    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 6
    answer = client.complete("Hi", max_tokens=None)
    assert answer.json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("fields", [
    {"tool_choice": None, "tools": []},
    {"tool_choice": "none"},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    {"response_format": {"type": "text"}},
    {"modalities": ["text"]},
    {"top_p": 1},
    {"seed": -1},
    {"messages": [{"role": role, "content": "Hi"} for role in ROLES]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}]},
    {"messages": [{"role": "user", "content": ""}, {"role": "assistant"}]},
    {"stop": []},
    {"metadata": {"a": "b"}, "user": "me", "store": True},
], ids=lambda v: str(v)[:40])
def test_harmless_fields(client: HttpClient, fields: dict[str, Any]) -> None:
    assert client.post("/v1/chat/completions", CHAT | fields).status == 200


def test_unknown_fields_are_logged_once_each(client: HttpClient,
                                             caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="octavo.server"):
        for _ in range(3):
            assert client.complete("Hi", max_tokens=1, x_first=1, x_second=[2]).status == 200
    told = [r.getMessage() for r in caplog.records if "x_first" in r.getMessage()]
    assert len(told) == 1
    assert sum("x_second" in r.getMessage() for r in caplog.records) == 1


def test_unknown_model(client: HttpClient) -> None:
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT),
                       ("/tokenize", {"prompt": "x"})):
        answer = client.post(path, body | {"model": "no-such-model"})
        assert answer.status == 404
        error = answer.error()
        assert error["code"] == "model_not_found" and "no-such-model" in error["message"]


def test_priority_is_heeded_where_the_policy_is() -> None:
    with serving(fake_async_llm(policy="priority")) as client:
        assert client.complete("Hi", max_tokens=1, priority=3).status == 200
        assert client.complete("Hi", max_tokens=1, priority=2**40).status == 400


def test_strict_params_refuse_what_no_route_knows() -> None:
    section = ServerSection(strict_params=True)
    with serving(fake_async_llm(), section) as client:
        answer = client.post("/v1/completions", {"prompt": "x", "temprature": 0})
        assert answer.status == 400 and answer.error()["param"] == "temprature"
        assert "--strict-params" in answer.error()["message"]
        assert client.post("/v1/completions", {"prompt": "x", "temperature": 0}).status == 200
