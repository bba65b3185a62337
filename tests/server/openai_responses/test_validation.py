"""Bad fields of /v1/responses: 400 with the field's name, and nothing else happens."""

from typing import Any

import pytest

from octavo.server.openai_responses.store import ResponseStore, StoredResponse
from tests.server.http_client import HttpClient

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"not": {}}}}


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "input[0].content[0].type"),
    ({"instructions": 3}, "instructions"),
    ({"previous_response_id": 3}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"n": 2}, "n"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"return_token_ids": True}, "return_token_ids"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**8}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"max_tool_calls": -1}, "max_tool_calls"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"temperature": 3e5}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"include": ["everything"]}, "include[0]"),
    ({"include": "message"}, "include"),
    ({"truncation": "middle"}, "truncation"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"metadata": {"a" * 65: "x"}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": "x"}, "metadata"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"user": "u" * 600}, "user"),
    ({"service_tier": 1}, "service_tier"),
    ({"store": "yes"}, "store"),
    ({"stream": 1}, "stream"),
    ({"text": "json"}, "text"),
    ({"text": {"verbosity": "huge"}}, "text.verbosity"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": 1}}},
     "text.format.strict"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}, "text.format"),
    ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"effort": ["low"]}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "f g"}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "gbnf",
                                                           "definition": "x"}}]},
     "tools[0].format.grammar.syntax"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
     "tool_choice.allowed_tools.tools"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"chat_template": "x"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"priority": 3}, "priority"),
    ({"request_id": "a\nb"}, "request_id"),
], ids=lambda v: str(v)[:40])
def test_bad_field(client: HttpClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2} | fields)
    assert answer.status == 400
    error = answer.error()
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert param in error["message"]
    assert client.metric("octavo:num_requests_running") == 0


@pytest.mark.parametrize("fields", [
    {"tools": [], "tool_choice": "none"},
    {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
    {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    {"reasoning": {"effort": "none", "summary": "auto"}},
    {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
    {"service_tier": "flex", "safety_identifier": "s", "prompt_cache_retention": "24h"},
    {"truncation": "disabled", "max_tool_calls": 1, "store": False, "top_logprobs": 0},
    {"stream": True, "stream_options": {"include_obfuscation": False}},
    {"max_tool_calls": 0},
    {"background": False, "conversation": None, "prompt": None, "moderation": None},
    {"instructions": "", "input": ""},
    {"tools": None, "text": None, "metadata": None, "input": "x", "stream": None},
], ids=lambda v: str(v)[:40])
def test_harmless_fields(client: HttpClient, fields: dict[str, Any]) -> None:
    body = {"input": "Hi", "max_output_tokens": 2} | fields
    assert client.post("/v1/responses", body).status == 200


def test_unknown_model(client: HttpClient) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = client.post(path, {"input": "x", "model": "no-such-model"})
        assert (answer.status, answer.error()["code"]) == (404, "model_not_found")


def response(size: int) -> StoredResponse:
    return StoredResponse(body=b"x" * size, conversation=b"[]", output=b"[]")


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_responses=3, max_bytes=100)
    for name in "abc":
        store.put(name, response(10))
    store.get("a")
    store.put("d", response(10))
    assert [n for n in "abcd" if n in store] == ["a", "c", "d"]  # b was used least recently
    assert store.num_bytes == 3 * 14
    store.put("e", response(60))
    assert [n for n in "acde" if n in store] == ["a", "d", "e"]
    store.put("e", response(20))
    assert store.num_bytes == sum(store.get(n).num_bytes for n in "acde" if n in store)
    assert not store.takes(101)
    store.put("f", response(200))
    assert "f" not in store
    for name in [n for n in "acde" if n in store]:
        store.delete(name)
    assert store.num_bytes == len(store) == 0
    assert not ResponseStore(max_responses=0).takes(1)
