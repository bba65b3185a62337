"""Timings in answers: where they are, what they say, and that they come only when asked for."""

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.engine.outputs import RequestMetrics
from octavo.server.timings import timings_of
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient

KEYS = {"queued_ms", "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms",
        "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_token_ms",
        "predicted_per_second"}
PROMPT = list(range(97, 97 + 20))


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm(step_s=0.001), ServerSection(strict_params=True)) as found:
        yield found


def check(timings: dict[str, Any], *, prompt: int, predicted: int) -> None:
    """Counts are exact, times and rates agree with one another."""
    assert set(timings) == KEYS
    assert timings["prompt_n"] + timings["cache_n"] == prompt
    assert timings["predicted_n"] == predicted
    assert timings["queued_ms"] >= 0 and timings["prompt_ms"] > 0
    if predicted > 1:
        assert timings["predicted_ms"] > 0
        product = timings["predicted_per_token_ms"] * timings["predicted_per_second"]
        assert product == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("field", ["timings", "timings_per_token"])
def test_whole_answers(client: HttpClient, field: str) -> None:
    answer = client.complete(PROMPT, max_tokens=6, **{field: True}).json
    check(answer["timings"], prompt=20, predicted=6)
    answer = client.chat("Hello", max_tokens=6, **{field: True}).json
    check(answer["timings"], prompt=answer["usage"]["prompt_tokens"], predicted=6)


def test_they_come_only_when_asked_for(client: HttpClient) -> None:
    for stream in (False, True):
        for answer in (client.complete(PROMPT, max_tokens=3, stream=stream),
                       client.chat("Hello", max_tokens=3, stream=stream, timings=False)):
            assert answer.status == 200 and "timings" not in answer.text


def test_cached_tokens(client: HttpClient) -> None:
    prompt = [98] * 40
    client.complete(prompt, max_tokens=1)
    timings = client.complete(prompt, max_tokens=2, timings=True).json["timings"]
    assert timings["cache_n"] == 32
    check(timings, prompt=40, predicted=2)


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("route", ["completions", "chat"])
def test_a_stream_has_them_in_its_last_chunk(client: HttpClient, route: str, usage: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "stream": True, "timings": True, "n": 2}
    if usage:
        fields["stream_options"] = {"include_usage": True}
    answer = client.complete(PROMPT, **fields) if route == "completions" else client.chat(
        "Hello", **fields)
    *others, last = answer.events
    assert answer.is_done and all("timings" not in event for event in others)
    assert (last["choices"] == []) == usage
    prompt = 20
    if route == "chat":
        prompt = client.chat("Hello", max_tokens=1).json["usage"]["prompt_tokens"]
    check(last["timings"], prompt=prompt, predicted=10)


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_every_chunk_has_them(client: HttpClient, route: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 5, "stream": True, "timings_per_token": True}
    answer = client.complete(PROMPT, **fields) if route == "completions" else client.chat(
        "Hello", **fields)
    events = [e for e in answer.events if "role" not in e["choices"][0].get("delta", {})]
    counts = [event["timings"]["predicted_n"] for event in events]
    assert len(counts) > 1 and counts == sorted(counts) and counts[-1] == 5


def test_several_prompts(client: HttpClient) -> None:
    answer = client.complete([PROMPT, [99] * 7], max_tokens=4, timings=True).json
    check(answer["timings"], prompt=27, predicted=8)
    streamed = client.complete([PROMPT, [99] * 7], max_tokens=4, timings=True, stream=True).events
    assert ["timings" in event for event in streamed].count(True) == 1
    check(streamed[-1]["timings"], prompt=27, predicted=8)


def test_arithmetic() -> None:
    """By hand: 10 of 16 prompt tokens computed in 0.5 s, then 4 more tokens in 0.2 s."""
    found = timings_of([RequestMetrics(
        100.0, num_prompt_tokens=16, num_cached_tokens=6, num_generation_tokens=5,
        first_token_time=101.0, last_token_time=101.2, queued_s=0.25, prefill_s=0.5)], 1)
    assert (found.queued_ms, found.cache_n, found.prompt_n, found.prompt_ms) == (250, 6, 10, 500)
    assert (found.prompt_per_token_ms, found.prompt_per_second) == (50, 20)
    assert (found.predicted_n, found.predicted_ms) == (5, 200)
    assert (found.predicted_per_token_ms, found.predicted_per_second) == (50, 20)
    nothing = timings_of([RequestMetrics(100.0, num_prompt_tokens=16)], 1)
    assert nothing.prompt_n == nothing.predicted_n == 0 and nothing.predicted_per_second == 0
