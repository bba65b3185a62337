"""Ollama's routes over the scripted engine: lines, ends, listings, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.testing.fake_async_llm import FakeEngine, fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import Answer, HttpClient

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
ENDS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
        "eval_count", "eval_duration"}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return fake_async_llm(max_model_len=1024, num_blocks=512)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[HttpClient]:
    with serving(engine, ServerSection(reasoning_parser="think")) as client:
        yield client


def chat(client: HttpClient, said: str = "SAY:Hello|", **fields: Any) -> Answer:
    return client.post("/api/chat", {"model": "fake-model", "messages": [
        {"role": "user", "content": said}], **fields})


def generate(client: HttpClient, said: str = "SAY:Hello|", **fields: Any) -> Answer:
    return client.post("/api/generate", {"model": "fake-model", "prompt": said, **fields})


def lines_of(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_probes(client: HttpClient) -> None:
    assert client.get("/").text.startswith("Ollama is running")
    assert client.request("HEAD", "/").status == 200
    assert client.get("/api/version").json["version"].count(".") == 2


def test_listings(client: HttpClient) -> None:
    models = client.get("/api/tags").json["models"]
    assert [m["name"] for m in models] == ["fake-model:latest", "alias/fake:latest"]
    assert set(models[0]) == {"name", "model", "modified_at", "size", "digest", "details"}
    [running, _] = client.get("/api/ps").json["models"]
    assert running["name"] == "fake-model:latest" and running["context_length"] == 1024
    shown = client.post("/api/show", {"model": "fake-model:latest"}).json
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert "im_start" in shown["template"] and "general.architecture" in shown["model_info"]
    with serving(fake_async_llm(hold_loading=True)) as loading:
        assert loading.get("/api/ps").json == {"models": []}


@pytest.mark.parametrize(("fields", "content", "thinking", "reason"), [
    ({}, "Hi 漢🙂", "Well.", "stop"),
    ({"think": True}, "Hi 漢🙂", "Well.", "stop"),
    ({"think": False}, "Hi 漢🙂", "", "stop"),
    ({"options": {"stop": "漢", "num_ctx": 4096}}, "Hi ", "Well.", "stop"),
    ({"options": {"num_predict": 21, "num_gpu": 1}}, "H", "Well.", "length"),
    ({"options": {"num_predict": -1}, "keep_alive": "5m", "model": "fake-model:latest"},
     "Hi 漢🙂", "Well.", "stop"),
])
@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_answers(client: HttpClient, kind: str, fields: dict[str, Any], content: str,
                 thinking: str, reason: str) -> None:
    said = "SAY:<think>Well.</think>Hi 漢🙂|"
    ask = chat if kind == "chat" else generate

    def inside(line: dict[str, Any]) -> tuple[str, str]:
        at = line["message"] if kind == "chat" else line
        return at["content" if kind == "chat" else "response"], at.get("thinking", "")

    whole = ask(client, said, stream=False, **fields).json
    assert inside(whole) == (content, thinking)
    assert whole["done"] is True and whole["done_reason"] == reason
    lines = lines_of(ask(client, said, **fields))
    assert "".join(inside(line)[0] for line in lines) == content
    assert "".join(inside(line)[1] for line in lines) == thinking
    *pieces, end = lines
    assert pieces and all(not p["done"] and not ENDS & set(p) for p in pieces)
    assert inside(end) == ("", "") and end["done"] and end["done_reason"] == reason
    for last in (whole, end):
        assert set(last) >= ENDS and all(type(last[name]) is int for name in ENDS)
        assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"] - 2
        assert last["model"] == fields.get("model", "fake-model")
    assert all(end[n] == whole[n] for n in ("prompt_eval_count", "eval_count"))
    assert ("context" in whole) == ("context" in end) == (kind == "generate")


def test_the_context_goes_on(client: HttpClient) -> None:
    first = generate(client, stream=False, system="Be short.").json
    assert len(first["context"]) == first["prompt_eval_count"] + first["eval_count"]
    alone = generate(client, "SAY:More|", stream=False).json
    second = generate(client, "SAY:More|", stream=False, context=first["context"]).json
    assert second["response"] == "More"
    assert second["prompt_eval_count"] == len(first["context"]) + alone["prompt_eval_count"]


def test_raw(client: HttpClient) -> None:
    answer = generate(client, "SAY:<think>|", stream=False, raw=True).json
    assert answer["response"] == "<think>" and "context" not in answer
    assert answer["prompt_eval_count"] == len("SAY:<think>|")


def test_logprobs(client: HttpClient) -> None:
    whole = chat(client, stream=False, logprobs=True, top_logprobs=2).json
    assert [item["token"] for item in whole["logprobs"]][:5] == list("Hello")
    assert len(whole["logprobs"][0]["top_logprobs"]) == 2
    lines = lines_of(chat(client, logprobs=True))
    assert [i["token"] for line in lines for i in line.get("logprobs", [])][:5] == list("Hello")


def test_loading_and_unloading(client: HttpClient) -> None:
    loaded = client.post("/api/generate", {"model": "fake-model"}).json
    assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
    gone = client.post("/api/chat", {"model": "fake-model", "messages": [], "keep_alive": 0}).json
    assert (gone["message"]["content"], gone["done_reason"]) == ("", "unload")
    assert chat(client).status == 200


def test_curl_names_another_media_type(client: HttpClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = {"model": "fake-model", "prompt": "SAY:Hi|", "stream": False}
    assert client.post("/api/generate", body, headers=form).json["response"] == "Hi"
    page = form | {"origin": client.base_url}
    assert client.post("/api/generate", body, headers=page).status == 415


IMAGE = [{"role": "user", "content": "x", "images": ["aGk="]}]


@pytest.mark.parametrize(("path", "fields", "status", "words"), [
    ("chat", {"model": None}, 400, "model is required"),
    ("chat", {"model": "nope"}, 404, "model 'nope' not found"),
    ("show", {"model": "nope"}, 404, "model 'nope' not found"),
    ("chat", {"messages": "x"}, 400, "messages"),
    ("chat", {"messages": [3]}, 400, "messages[0] is 3"),
    ("chat", {"messages": [{"role": "x", "content": "y"}]}, 400, "messages[0].role is 'x'"),
    ("chat", {"messages": [{"role": "user", "content": [1]}]}, 400, "messages[0].content"),
    ("chat", {"messages": IMAGE}, 400, "messages[0].images is not accepted"),
    ("chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400,
     "messages[0].tool_calls[0].function.name"),
    ("chat", {"tools": [{"type": "x"}]}, 400, "tools[0].type is 'x'"),
    ("chat", {"format": "xml"}, 400, "format is 'xml'"),
    ("chat", {"think": "hard"}, 400, "think is 'hard'"),
    ("chat", {"keep_alive": "soon"}, 400, "keep_alive is 'soon'"),
    ("chat", {"options": {"temperature": -1}}, 400, "options.temperature is -1"),
    ("chat", {"options": {"temperature": "x"}}, 400, "options.temperature: "),
    ("chat", {"options": {"num_predict": 0}}, 400, "options.num_predict is 0"),
    ("chat", {"options": {"mirostat": 2}}, 400, "options.mirostat is 2"),
    ("generate", {"suffix": "x"}, 400, "suffix is not accepted"),
    ("generate", {"template": "x"}, 400, "template is not accepted"),
    ("generate", {"images": ["aGk="]}, 400, "images is not accepted"),
    ("generate", {"raw": True, "system": "x"}, 400, "raw mode takes no system"),
    ("generate", {"context": [10**6]}, 400, "context holds 1000000"),
    ("pull", {}, 400, "/api/pull is not offered"),
    ("create", {}, 400, "/api/create is not offered"),
    ("embed", {"input": "x"}, 404, "there is no route POST /api/embed"),
    ("embeddings", {"prompt": "x"}, 404, "there is no route POST /api/embeddings"),
])
def test_refusals(client: HttpClient, path: str, fields: dict[str, Any], status: int,
                  words: str) -> None:
    body = {"model": "fake-model"} | (
        {"messages": [{"role": "user", "content": "Hi"}]} if path == "chat" else {"prompt": "Hi"})
    answer = client.post(f"/api/{path}", body | fields)
    assert answer.status == status, answer.text
    assert list(answer.json) == ["error"] and words in answer.json["error"], answer.text


def test_no_thinking_where_there_is_none() -> None:
    with serving(fake_async_llm()) as client:
        answer = chat(client, think=True)
        assert answer.status == 400 and "does not support thinking" in answer.json["error"]
        assert client.post("/api/show", {"model": "fake-model"}).json["capabilities"] == [
            "completion", "tools"]


def test_a_failure_in_mid_stream_is_an_error_line() -> None:
    with serving(fake_async_llm()) as client:
        lines = lines_of(chat(client, "FAULT-AT-5"))
        assert list(lines[-1]) == ["error"] and not any("error" in line for line in lines[:-1])
