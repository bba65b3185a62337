"""The OpenAI client's other ways: parsed answers, raw answers, the asynchronous client, retries,
and what is not served."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, DefaultHttpxClient, OpenAI
from pydantic import BaseModel, Field

from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient
from tests.server.process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    continent: Literal["Europe", "Asia"]
    millions: int = Field(ge=0, le=40)


class GetWeather(BaseModel):
    """Weather of a city."""

    city: Literal["Oslo", "Lima"]


@pytest.fixture(scope="module")
def base_url(real_server: ServerProcess) -> str:
    return real_server.client.base_url + "/v1"


def client_of(base_url: str, **options: Any) -> OpenAI:
    return OpenAI(**({"base_url": base_url, "api_key": "none", "max_retries": 0} | options))


def test_parsed_answers(base_url: str) -> None:
    with client_of(base_url) as client:
        answer = client.chat.completions.parse(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=80, response_format=City)
        city = answer.choices[0].message.parsed
        assert isinstance(city, City)
        with client.chat.completions.stream(
                model=MODEL, messages=QUESTION, temperature=0, max_tokens=80,
                response_format=City) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_completion()
        assert "content.done" in kinds and streamed.choices[0].message.parsed == city


def test_parsed_calls(base_url: str) -> None:
    with client_of(base_url) as client:
        answer = client.chat.completions.parse(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=80,
            tools=[openai.pydantic_function_tool(GetWeather)], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_an_answer_cut_short_is_the_clients_own_error(base_url: str) -> None:
    with client_of(base_url) as client, pytest.raises(openai.LengthFinishReasonError) as cut:
        client.chat.completions.parse(model=MODEL, messages=QUESTION, temperature=0, max_tokens=3,
                                      response_format=City)
    assert cut.value.completion.usage is not None
    assert cut.value.completion.usage.completion_tokens == 3


def test_raw_answers(base_url: str) -> None:
    with client_of(base_url) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=4,
            extra_headers={"x-request-id": "mine-7"})
        assert raw.status_code == 200 and raw.headers["x-request-id"] == "mine-7"
        assert raw.request_id == "mine-7"
        assert raw.headers["content-type"] == "application/json"
        assert raw.parse().choices[0].message.content
        with client.chat.completions.with_streaming_response.create(
                model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, stream=True) as lines:
            assert lines.headers["content-type"].startswith("text/event-stream")
            assert lines.headers["x-request-id"]
            assert [line for line in lines.iter_lines() if line][-1] == "data: [DONE]"


def test_the_asynchronous_client(base_url: str) -> None:
    async def test() -> None:
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            async def whole() -> str | None:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=QUESTION, temperature=0, max_tokens=12)
                return answer.choices[0].message.content

            async def streamed() -> str:
                chunks = await client.chat.completions.create(
                    model=MODEL, messages=QUESTION, temperature=0, max_tokens=12, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in chunks])

            texts = await asyncio.gather(*[f() for f in (whole, streamed) * 4])
            assert len(set(texts)) == 1 and "Paris" in (texts[0] or "")

    asyncio.run(test())


def test_what_is_not_served_is_a_clear_404(base_url: str) -> None:
    with client_of(base_url, max_retries=2) as client:
        for call in (lambda: client.embeddings.create(model=MODEL, input="x"),
                     lambda: client.images.generate(model=MODEL, prompt="x"),
                     lambda: client.moderations.create(input="x")):
            with pytest.raises(openai.NotFoundError) as refused:
                call()
            assert refused.value.type == "invalid_request_error"
            assert "/v1/" in refused.value.message


def retrying(client: HttpClient, on_refusal: Callable[[], None]) -> tuple[OpenAI, list[int]]:
    """A client that calls back when it is refused, and the statuses it saw."""
    seen: list[int] = []

    def saw(response: Any) -> None:
        seen.append(response.status_code)
        if response.status_code != 200:
            on_refusal()

    return client_of(client.base_url + "/v1", max_retries=2, http_client=DefaultHttpxClient(
        event_hooks={"response": [saw]})), seen


def test_a_client_comes_back_when_the_queue_was_full() -> None:
    engine = fake_async_llm(max_num_seqs=1, max_num_waiting=1)
    with serving(engine) as http:
        engine.executor.run.clear()
        crowd = threading.Thread(target=http.complete, args=("Hi",),
                                 kwargs={"n": 2, "max_tokens": 1})
        crowd.start()
        wait_for(lambda: engine.llm.num_unfinished_requests == 1)

        def make_room() -> None:
            engine.executor.run.set()
            crowd.join()

        client, seen = retrying(http, make_room)
        with client:
            answer = client.completions.create(model="fake-model", prompt="Hi", max_tokens=1)
    assert seen == [429, 200] and answer.choices[0].text


def test_a_client_comes_back_when_the_model_was_loading() -> None:
    engine = fake_async_llm(hold_loading=True)
    with serving(engine) as http:
        wait_for(lambda: http.get("/health").status == 503)

        def load() -> None:
            engine.may_load.set()
            wait_for(lambda: http.get("/ready").status == 200)

        client, seen = retrying(http, load)
        with client:
            answer = client.completions.create(model="fake-model", prompt="Hi", max_tokens=1)
    assert seen == [503, 200] and answer.choices[0].text
