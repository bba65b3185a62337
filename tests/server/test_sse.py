"""Event streams to the byte: chunks, ends, pings, failures, and clients that leave."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from octavo.errors import OctavoError
from octavo.server.generation import ClientGoneError
from octavo.server.sse import DONE, PING, EventStream
from octavo.testing.fake_async_llm import FakeEngine, fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient, read_until

SAID = "héllo 漢字 🙂🌶️ end"


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return fake_async_llm(max_model_len=4096, num_blocks=1024)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[HttpClient]:
    with serving(engine) as client:
        yield client


def test_chat_chunks(client: HttpClient) -> None:
    answer = client.chat(f"SAY:{SAID}|", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.is_done and answer.text.count("[DONE]") == 1
    events = answer.events
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    for key in ("id", "created", "model", "system_fingerprint"):
        assert len({e[key] for e in events}) == 1
    assert all("usage" not in e for e in events)
    first, *rest = [e["choices"][0] for e in events]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in c["delta"] for c in rest)
    assert "".join(c["delta"].get("content", "") for c in rest) == SAID
    reasons = [c["finish_reason"] for c in (first, *rest)]
    assert reasons[-1] == "stop" and reasons[:-1] == [None] * (len(reasons) - 1)
    assert all(set(c) >= {"index", "delta", "finish_reason", "logprobs"} for c in rest)


def test_no_piece_splits_a_character(engine: FakeEngine, client: HttpClient) -> None:
    engine.executor.step_s = 0.002  # so that each token gets its own chunk
    try:
        events = client.complete(f"SAY:{SAID}|", stream=True, max_tokens=100).events
    finally:
        engine.executor.step_s = 0.0
    pieces = [e["choices"][0]["text"] for e in events]
    assert len(pieces) > 5
    assert "".join(pieces) == SAID
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_stream_equals_whole(client: HttpClient) -> None:
    fields: dict[str, Any] = {"max_tokens": 30, "stop": ["end"], "logprobs": 2, "echo": True}
    whole = client.complete(f"SAY:{SAID}|", **fields).json["choices"][0]
    events = client.complete(f"SAY:{SAID}|", **fields, stream=True).events
    parts = [e["choices"][0] for e in events]
    assert "".join(p["text"] for p in parts) == whole["text"]
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [x for p in parts for x in p["logprobs"][key]] == whole["logprobs"][key]
    assert parts[-1]["finish_reason"] == whole["finish_reason"] == "stop"
    assert parts[-1]["stop_reason"] == whole["stop_reason"] == "end"


def test_usage_chunk(client: HttpClient) -> None:
    whole = client.chat("Hi", max_tokens=5).json["usage"]
    asked = client.chat("Hi", max_tokens=5, stream=True, stream_options={"include_usage": True})
    *chunks, last = asked.events
    assert last["choices"] == []
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][key] == whole[key]
    assert type(last["usage"]["prompt_tokens_details"]["cached_tokens"]) is int
    assert all(e["usage"] is None for e in chunks)
    for options in ({}, {"include_usage": False}, None):
        events = client.chat("Hi", max_tokens=5, stream=True, stream_options=options).events
        assert all("usage" not in e for e in events)
    done = client.complete("Hi", max_tokens=5, stream=True, stream_options={"include_usage": True})
    assert done.events[-1]["choices"] == []
    assert done.events[-1]["usage"]["completion_tokens"] == 5


def test_each_choice_ends_once(client: HttpClient) -> None:
    for answer in (client.chat("Hi", max_tokens=6, n=3, stream=True, temperature=1),
                   client.complete("Hi", max_tokens=6, n=3, stream=True, temperature=1)):
        choices = [c for e in answer.events for c in e["choices"]]
        assert {c["index"] for c in choices} == {0, 1, 2}
        for index in range(3):
            reasons = [c["finish_reason"] for c in choices if c["index"] == index]
            assert [r for r in reasons if r] == ["length"] and reasons[-1] == "length"
        assert answer.is_done


def test_several_prompts_in_one_stream(client: HttpClient) -> None:
    prompts = ["SAY:one|", "SAY:two|", "SAY:three|"]
    answer = client.complete(prompts, stream=True, n=2, stream_options={"include_usage": True})
    texts = [""] * 6
    for event in answer.events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["one", "one", "two", "two", "three", "three"]
    assert answer.events[-1]["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_the_first_chunk_does_not_wait_for_the_first_token(engine: FakeEngine,
                                                           client: HttpClient) -> None:
    engine.executor.run.clear()
    try:
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 2}
        with client.open_raw("/v1/chat/completions", body) as sock:
            assert b'"role":"assistant"' in read_until(sock, b'"role":"assistant"')
            engine.executor.run.set()
            read_until(sock, b"[DONE]")
    finally:
        engine.executor.run.set()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("rudely", [True, False])
def test_a_client_that_leaves_stops_its_request(engine: FakeEngine, client: HttpClient,
                                                stream: bool, rudely: bool) -> None:
    engine.executor.step_s = 0.002
    try:
        prompts = ["Count", "And count"] if stream else "Count"
        body = {"prompt": prompts, "max_tokens": 4000, "stream": stream, "n": 2}
        sock = client.open_raw("/v1/completions", body)
        if stream:
            read_until(sock, b"data: ")
        wait_for(lambda: client.metric("octavo:num_requests_running") >= 2)
        if rudely:  # a reset instead of an orderly end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_for(lambda: client.metric("octavo:num_requests_running") == 0)
        assert engine.llm.num_unfinished_requests == 0
    finally:
        engine.executor.step_s = 0.0
    assert client.metric("octavo:kv_cache_usage_perc") == 0
    assert client.complete("Hi", max_tokens=1).status == 200


def test_a_failure_in_mid_stream_is_one_error_event() -> None:
    with serving(fake_async_llm()) as client:
        answer = client.chat("FAULT-AT-5", max_tokens=24, stream=True)
        assert answer.status == 200
        assert "[DONE]" not in answer.text
        error = answer.events[-1]["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "engine_dead"
        assert all("error" not in e for e in answer.events[:-1])
        assert client.get("/health").status == 503


def test_a_failure_of_a_whole_answer_is_a_status() -> None:
    with serving(fake_async_llm()) as client:
        answer = client.chat("FAULT-AT-5", max_tokens=24)
        assert (answer.status, answer.error()["code"]) == (503, "engine_dead")


async def _call(stream: EventStream, receive: Any) -> bytes:
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    await stream({"type": "http"}, receive, send)  # type: ignore[arg-type]
    return b"".join(sent)


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def _nothing() -> None:
    return None


def test_pings_while_nothing_comes() -> None:
    pinged = asyncio.Event()

    async def run() -> bytes:
        async def events() -> AsyncGenerator[bytes, None]:
            await pinged.wait()
            yield b"data: 1\n\n"
            yield DONE

        sent: list[bytes] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("body", b""))
            if sent.count(PING) == 2:
                pinged.set()

        stream = EventStream(events(), on_leave=_nothing, ping_interval_s=0.01)
        await stream({"type": "http"}, _never, send)  # type: ignore[arg-type]
        return b"".join(sent)

    data = asyncio.run(run())
    assert data.startswith(b": ping\n\n: ping\n\n") and data.endswith(b"data: 1\n\n" + DONE)
    assert PING not in data[data.index(b"data: 1"):]


def test_leaving_is_told_and_ends_the_stream() -> None:
    async def run() -> tuple[bytes, list[str]]:
        told: list[str] = []
        left = asyncio.Event()

        async def events() -> AsyncGenerator[bytes, None]:
            try:
                yield b"data: 1\n\n"
                await left.wait()
                raise ClientGoneError
            finally:
                told.append("closed")

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def on_leave() -> None:
            told.append("left")
            left.set()

        return await _call(EventStream(events(), on_leave=on_leave), receive), told

    data, told = asyncio.run(run())
    assert data == b"data: 1\n\n" and told == ["left", "closed"]


@pytest.mark.parametrize("error", [OctavoError("it broke"), RuntimeError("secret")])
def test_errors_become_events(error: Exception) -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise error

    data = asyncio.run(_call(EventStream(events(), on_leave=_nothing), _never))
    assert data.startswith(b'data: 1\n\ndata: {"error":{') and data.endswith(b"}}\n\n")
    assert b"secret" not in data and DONE not in data
