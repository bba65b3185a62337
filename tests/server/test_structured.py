"""Structured output over HTTP: every name it has, on a real server and model."""

import json
import threading
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.server.protocol.requests import ChatRequest
from octavo.server.structured import structured_outputs
from tests.server.http_client import HttpClient
from tests.server.process import ServerProcess

ENUM = "🌶️ďábel 漢字 🙂🙂"
SCHEMA = {"type": "object", "properties": {"s": {"enum": [ENUM]}}, "required": ["s"],
          "additionalProperties": False}


def asked(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=[], **fields)


@pytest.mark.parametrize(("fields", "kind", "text"), [
    ({"response_format": {"type": "json_object"}}, "json", '{"type":"object"}'),
    ({"response_format": {"type": "json_object", "schema": {"enum": [1]}}}, "json",
     '{"enum":[1]}'),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "n", "strict": True, "description": "d", "schema": {"enum": [1]}}}}, "json",
     '{"enum":[1]}'),
    ({"structured_outputs": {"json": '{"enum": [1]}', "regex": None}}, "json", '{"enum":[1]}'),
    ({"structured_outputs": {"choice": ["a"], "disable_fallback": True}}, "choice", '["a"]'),
    ({"guided_json": {"enum": [1]}}, "json", '{"enum":[1]}'),
    ({"guided_regex": "a+"}, "regex", "a+"),
    ({"guided_choice": ["a"]}, "choice", '["a"]'),
    ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
], ids=lambda v: str(v)[:40])
def test_names(fields: dict[str, Any], kind: str, text: str) -> None:
    spec = structured_outputs(asked(**fields))
    assert spec is not None and spec.key[:2] == (kind, text)
    assert spec.field == next(iter(fields))


def test_free_text() -> None:
    for fields in ({}, {"response_format": {"type": "text"}}):
        assert structured_outputs(asked(**fields)) is None


def test_two_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        structured_outputs(asked(response_format={"type": "json_object"}, guided_choice=["a"]))
    assert refused.value.param == "guided_choice"


def chat(client: HttpClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Say it."}], "temperature": 0,
        "max_tokens": 80} | fields)
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]


def streamed(client: HttpClient, **fields: Any) -> tuple[str, str]:
    answer = client.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Say it."}], "temperature": 0,
        "max_tokens": 80, "stream": True} | fields)
    choices = [json.loads(line[6:])["choices"][0] for line in answer.text.splitlines()
               if line.startswith("data: {")]
    return ("".join(c["delta"].get("content") or "" for c in choices),
            choices[-1]["finish_reason"])


def in_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema",
                                "json_schema": {"name": "out", "strict": True, "schema": schema}}}


def test_characters_of_many_bytes(real_server: ServerProcess) -> None:
    """Whole, streamed, and cut at every token, most of which are parts of characters."""
    client = real_server.client
    whole = chat(client, **in_format(SCHEMA))
    assert json.loads(whole["message"]["content"]) == {"s": ENUM}
    assert whole["finish_reason"] == "stop"
    assert streamed(client, **in_format(SCHEMA)) == (whole["message"]["content"], "stop")
    cuts = set()
    for max_tokens in range(4, 14):
        cut = chat(client, **in_format(SCHEMA), max_tokens=max_tokens)
        assert cut["finish_reason"] == "length"
        text = cut["message"]["content"]
        assert streamed(client, **in_format(SCHEMA), max_tokens=max_tokens) == (text, "length")
        cuts.add(text.endswith("�"))
    assert cuts == {True, False}


def test_parallel_requests_with_different_enums(real_server: ServerProcess) -> None:
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        schema = {"enum": [f"{i}-yes", f"{i}-no"]}
        found[i] = chat(real_server.client, **in_format(schema))["message"]["content"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(json.loads(found[i]) in (f"{i}-yes", f"{i}-no") for i in range(8))


def test_completions_and_samples(real_server: ServerProcess) -> None:
    answer = real_server.client.post("/v1/completions", {
        "prompt": ["Is water wet?", "Is fire cold?"], "n": 2, "max_tokens": 8, "logprobs": 1,
        "structured_outputs": {"choice": ["yes", "no"]}})
    assert answer.status == 200
    choices = answer.json["choices"]
    assert len(choices) == 4
    for choice in choices:
        assert choice["text"] in ("yes", "no") and choice["finish_reason"] == "stop"
        assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"])


def test_a_refused_keyword_is_named(real_server: ServerProcess) -> None:
    for stream in (False, True):
        answer = real_server.client.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "stream": stream,
            **in_format({"type": "object", "properties": {"a": {"not": {}}}})})
        assert answer.status == 400
        error = answer.error()
        assert error["param"] == "response_format" and '"not"' in error["message"]
