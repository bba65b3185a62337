"""suffix of /v1/completions: text for a gap."""

from collections.abc import Iterator

import pytest

from octavo.testing.fake_async_llm import fake_async_llm
from octavo.tokenizer.fim import FimTokens
from tests.server.conftest import serving
from tests.server.http_client import HttpClient

GAP = FimTokens(before=ord("<"), after=ord("#"), middle=ord(">"), end_ids=(ord("!"),))


@pytest.fixture
def client() -> Iterator[HttpClient]:
    """Of a model whose vocabulary can fill gaps."""
    engine = fake_async_llm()
    engine.llm.tokenizer.fim = GAP
    with serving(engine) as client:
        yield client


def test_texts_around_a_gap(client: HttpClient) -> None:
    answer = client.post("/v1/completions", {
        "prompt": ["SAY:abc!d|", "SAY:xy|"], "suffix": "zz", "return_token_ids": True}).json
    first, second = answer["choices"]
    assert bytes(first["prompt_token_ids"]) == b"<SAY:abc!d|#zz>"
    assert (first["text"], first["finish_reason"], first["stop_reason"]) == ("abc", "stop", 33)
    assert bytes(second["prompt_token_ids"]) == b"<SAY:xy|#zz>"
    assert second["text"] == "xy"


def test_token_ids_before_a_gap(client: HttpClient) -> None:
    answer = client.post("/v1/completions", {
        "prompt": list(b"SAY:q|"), "suffix": "z", "return_token_ids": True}).json
    assert bytes(answer["choices"][0]["prompt_token_ids"]) == b"<SAY:q|#z>"
    assert answer["choices"][0]["text"] == "q"


def test_an_empty_suffix_is_none(client: HttpClient) -> None:
    answer = client.post("/v1/completions", {
        "prompt": "SAY:a!b|", "suffix": "", "echo": True, "return_token_ids": True}).json
    assert bytes(answer["choices"][0]["prompt_token_ids"]) == b"SAY:a!b|"
    assert answer["choices"][0]["text"] == "SAY:a!b|a!b"


def test_echo_is_refused(client: HttpClient) -> None:
    answer = client.post("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True})
    assert answer.status == 400 and answer.error()["param"] == "echo"


def test_a_model_that_only_continues() -> None:
    with serving(fake_async_llm()) as client:
        answer = client.post("/v1/completions", {"prompt": "a", "suffix": "b"})
    assert answer.status == 400 and answer.error()["param"] == "suffix"
    assert "no fill-in-the-middle tokens" in answer.error()["message"]
