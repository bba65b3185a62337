"""A real server under what users do to it: equal prompts, parallel requests, cached prompts."""

import concurrent.futures

import pytest

from tests.server.http_client import Answer, HttpClient
from tests.server.process import ServerProcess

RIVER = "The river runs past the old mill and the green hill. " * 20 + "Then"


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> HttpClient:
    return real_server.client


def test_cached_prompts_give_the_same_answer(client: HttpClient) -> None:
    # lengths around the borders of blocks: a prompt wholly in the cache leaves nothing to compute
    for length in (2, 15, 16, 17, 31, 32, 33, 64, 128):
        prompt = list(range(3000, 3000 + length))
        first, second = (client.complete(prompt, max_tokens=3, temperature=0, logprobs=1).json
                         for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"]
        assert first["choices"][0]["logprobs"] == second["choices"][0]["logprobs"]


def test_cache_hits_are_reported_and_change_nothing(client: HttpClient) -> None:
    cold = client.complete(RIVER + " the miller", max_tokens=10, temperature=0,
                           cache_salt="cold").json
    client.complete(RIVER, max_tokens=1, temperature=0)
    warm = client.complete(RIVER + " the miller", max_tokens=10, temperature=0).json
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < warm["usage"]["prompt_tokens"]
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]


def test_prompt_logprobs_do_not_read_the_cache(client: HttpClient) -> None:
    def score() -> dict[str, list[object]]:
        answer = client.complete(RIVER, max_tokens=1, temperature=0, echo=True, logprobs=1)
        logprobs: dict[str, list[object]] = answer.json["choices"][0]["logprobs"]
        return logprobs

    first = score()
    client.complete(RIVER[:300] + "Nobody", max_tokens=1, temperature=0)
    second = score()
    assert first == second
    assert len(set(map(str, first["token_logprobs"]))) > 20


def test_parallel_requests_answer_as_alone(client: HttpClient) -> None:
    prompts = ["The sea is", "One two three", RIVER, "Hello world", "A tree"]

    def ask(prompt: str) -> str:
        answer: Answer = client.complete(prompt, max_tokens=12, temperature=0)
        text: str = answer.json["choices"][0]["text"]
        return text

    alone = [ask(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        together = list(pool.map(ask, prompts * 2))
    assert together == alone * 2
