"""Routes beside generation, and what every route does: ids, keys, methods, loading."""

import json
import re
from collections.abc import Iterator

import pytest

from octavo.config import ServerSection
from octavo.errors import ModelLoadError, OctavoError
from octavo.testing.byte_tokenizer import IM_END_ID, IM_START_ID
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient, read_until


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as client:
        yield client


def test_models(client: HttpClient) -> None:
    listed = client.get("/v1/models").json
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["fake-model", "alias/fake"]
    for card in listed["data"]:
        assert card["object"] == "model" and card["max_model_len"] == 512
        assert client.get(f"/v1/models/{card['id']}").json == card
    answer = client.get("/v1/models/other")
    assert (answer.status, answer.error()["code"]) == (404, "model_not_found")


def test_every_served_name_answers(client: HttpClient) -> None:
    for name in ("fake-model", "alias/fake"):
        assert client.complete("x", model=name, max_tokens=1).json["model"] == name
    assert client.complete("x", max_tokens=1).json["model"] == "fake-model"


def test_unknown_route_and_wrong_method(client: HttpClient) -> None:
    answer = client.post("/v1/no_such_route", {})
    assert (answer.status, answer.error()["code"]) == (404, "not_found")
    assert answer.error()["message"] == "there is no route POST /v1/no_such_route"
    for path in ("/v1/embeddings", "/api/embed", "/api/embeddings", "/v1/rerank", "/score"):
        answer = client.post(path, {})
        assert answer.status == 404 and "models trained for them" in str(answer.json)
    answer = client.get("/v1/chat/completions")
    assert (answer.status, answer.error()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert client.request("DELETE", "/v1/models").status == 405
    assert client.request("HEAD", "/health").status == 200
    assert client.get("/v1/models/").status == 404


def test_every_answer_has_a_request_id(client: HttpClient) -> None:
    for answer in (client.get("/health"), client.get("/nowhere"), client.complete("x", n=0),
                   client.complete("x", max_tokens=1, stream=True)):
        assert len(answer.headers["x-request-id"]) == 32
    given = client.get("/health", headers={"x-request-id": "my-id-7"})
    assert given.headers["x-request-id"] == "my-id-7"
    too_long = client.get("/health", headers={"x-request-id": "x" * 1000})
    assert len(too_long.headers["x-request-id"]) == 32


def test_request_id_of_the_body_names_the_answer(client: HttpClient) -> None:
    for _ in range(2):  # ids may come again: they name answers, not engine requests
        assert client.complete("x", max_tokens=1, request_id="a").json["id"] == "cmpl-a"
    assert client.chat("x", max_tokens=1, request_id="b").json["id"] == "chatcmpl-b"


def test_tokenize(client: HttpClient) -> None:
    answer = client.post("/tokenize", {"prompt": "ab<|im_end|>"}).json
    assert answer["tokens"] == [97, 98, IM_END_ID]
    assert (answer["count"], answer["max_model_len"]) == (3, 512)
    assert client.post("/tokenize", {"content": "ab"}).json["tokens"] == [97, 98]
    pieces = client.post("/tokenize", {"content": "ab", "with_pieces": True}).json["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, {"id": 98, "piece": "b"}]
    strs = client.post("/tokenize", {"prompt": " a", "return_token_strs": True}).json
    assert strs["token_strs"] == ["Ġ", "a"]
    messages = [{"role": "user", "content": "Hi<|im_end|>"}]
    ids = client.post("/tokenize", {"messages": messages}).json["tokens"]
    # typed control tokens stay text; those of the template are real
    assert ids.count(IM_END_ID) == 1 and ids.count(IM_START_ID) == 2
    assert client.post("/tokenize", {"prompt": "a", "content": "b"}).status == 400
    assert client.post("/tokenize", {}).status == 400


def test_detokenize(client: HttpClient) -> None:
    answer = client.post("/detokenize", {"tokens": [97, IM_START_ID, IM_END_ID, 98]}).json
    assert answer == {"prompt": "a<|im_start|><|im_end|>b", "content": "a<|im_start|><|im_end|>b"}
    assert client.post("/detokenize", {"tokens": [10**9]}).error()["param"] == "tokens"
    assert client.post("/detokenize", {}).error()["param"] == "tokens"


def test_small_routes(client: HttpClient) -> None:
    assert client.get("/version").json["version"]
    assert client.get("/load").json == {"server_load": 0}
    assert client.get("/ping").json == {}
    info = client.get("/tokenizer_info").json
    assert info["eos_token"] == "<|eos|>" and "im_start" in info["chat_template"]
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "# TYPE octavo:num_requests_running gauge" in metrics.text


def test_loading_then_ready() -> None:
    engine = fake_async_llm(hold_loading=True)
    told: list[str] = []
    with serving(engine, on_ready=lambda: told.append("ready")) as client:
        for path in ("/health", "/ready"):
            answer = client.get(path)
            assert (answer.status, answer.error()["code"]) == (503, "engine_loading")
            assert int(answer.headers["retry-after"]) > 0
        answer = client.complete("Hi")
        assert (answer.status, answer.error()["code"]) == (503, "engine_loading")
        assert client.get("/v1/models").status == 200
        assert client.post("/tokenize", {"prompt": "a"}).status == 200
        assert not told
        engine.may_load.set()
        wait_for(lambda: client.get("/health").status == 200)
        assert client.get("/ready").status == 200
        assert client.complete("Hi", max_tokens=1).status == 200
        wait_for(lambda: told == ["ready"])


def test_a_model_that_cannot_load() -> None:
    errors: list[OctavoError] = []
    engine = fake_async_llm(load_error=ModelLoadError("model.gguf: is broken"), hold_loading=True)
    with serving(engine, on_load_error=errors.append) as client:
        engine.may_load.set()
        wait_for(lambda: bool(errors))
        assert client.get("/health").status == 503
        assert client.complete("Hi").status >= 500
    assert [e.message for e in errors] == ["model.gguf: is broken"]


def test_api_keys() -> None:
    section = ServerSection(api_keys=("first-key", "second-key"))
    with serving(fake_async_llm(), section, allowed_origins=["http://ui.example"]) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"},
                        {"authorization": "Bearer "}):
            answer = client.complete("Hi", max_tokens=1)
            answer = client.post("/v1/completions", {"prompt": "Hi"}, headers=headers)
            assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": "Bearer first-key"}, {"x-api-key": "second-key"}):
            body = {"prompt": "Hi", "max_tokens": 1}
            assert client.post("/v1/completions", body, headers=headers).status == 200
        for path in ("/health", "/ready", "/metrics", "/ping"):
            assert client.get(path).status == 200
        for path in ("/v1/models", "/version", "/tokenizer_info"):
            assert client.get(path).status == 401
        # a browser's preflight has no key
        preflight = client.request("OPTIONS", "/v1/chat/completions", headers={
            "origin": "http://ui.example", "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type"})
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == "http://ui.example"


def test_no_cors_by_default(client: HttpClient) -> None:
    answer = client.get("/v1/models", headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_full_queue_is_429() -> None:
    engine = fake_async_llm(max_num_seqs=1, max_num_waiting=1)
    with serving(engine) as client:
        engine.executor.run.clear()
        with client.open_raw("/v1/completions", {"prompt": "Hi", "n": 2, "max_tokens": 2}) as sock:
            wait_for(lambda: engine.llm.num_unfinished_requests == 1)
            answer = client.complete("Hi")
            assert (answer.status, answer.error()["code"]) == (429, "rate_limit_exceeded")
            assert int(answer.headers["retry-after"]) > 0
            engine.executor.run.set()
            read_until(sock, b"usage")
        assert client.complete("Hi", max_tokens=1).status == 200


def test_pipelined_requests_on_one_connection(client: HttpClient) -> None:
    body = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
    bad = b'{"prompt": nonsense'

    def request(data: bytes, more: bytes = b"") -> bytes:
        return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + more
                + b"Content-Length: %d\r\n\r\n" % len(data) + data)

    sock = client.open_raw("/v1/completions", {"prompt": "Hi", "max_tokens": 1})
    with sock:
        sock.sendall(request(bad) + request(body, b"Connection: close\r\n"))
        data = b""
        while piece := sock.recv(65536):
            data += piece
    assert re.findall(rb"HTTP/1\.1 (\d+)", data) == [b"200", b"400", b"200"]
