"""What happens below the routes: heads without end, wishes for HTTP/2, bytes that are no HTTP."""

import contextlib
import json
import logging
import resource
import socket
from collections.abc import Iterator

import pytest

from octavo.server import http_protocol
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient

BODY = json.dumps({"prompt": "SAY:hi|", "max_tokens": 5}).encode()
POST = (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n" % len(BODY))


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as client:
        yield client


def talk(client: HttpClient, *pieces: bytes) -> bytes:
    """Sends the pieces one by one; everything that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as sock:
        for piece in pieces:
            sock.sendall(piece)
        found = b""
        while True:
            try:
                data = sock.recv(65536)
            except ConnectionResetError:  # it closed with bytes of ours unread
                return found
            if not data:
                return found
            found += data


def error_of(answer: bytes) -> dict[str, str]:
    error: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("upgrade", [b"Upgrade: h2c\r\n", b"upgrade:h2c \r\n"])
def test_a_wish_for_http2_is_passed_over(client: HttpClient, upgrade: bytes) -> None:
    head = POST + upgrade + b"Connection: Upgrade, HTTP2-Settings, close\r\nHTTP2-Settings: AAM\r\n"
    for pieces in ((head + b"\r\n" + BODY,), (head + b"\r\n", BODY), (POST, head[len(POST):]
                                                                     + b"\r\n", BODY)):
        answer = talk(client, *pieces)
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"text":"hi"' in answer


def test_a_body_may_say_upgrade(client: HttpClient) -> None:
    body = json.dumps({"prompt": "SAY:hi|", "stop": "\r\nUpgrade: h2c\r\n"}).encode()
    head = (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    assert b'"text":"hi"' in talk(client, head, body)
    assert b'"text":"hi"' in talk(client, head + body)


@pytest.mark.parametrize("head", [
    b"GET /health HTTP/1.1\r\n" + b"x-filler: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nx: " + b"a" * 100_000,
    b"GET /" + b"a" * 100_000,
])
def test_a_head_has_a_bound(client: HttpClient, head: bytes) -> None:
    answer = talk(client, head)
    # the rest of what was sent may reset the connection before the answer is read
    if answer:
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert str(http_protocol.MAX_HEAD_BYTES) in error_of(answer)["message"]
    assert client.get("/health").status == 200


def test_what_is_no_http_gets_an_error_object(client: HttpClient) -> None:
    answer = talk(client, b"hello there\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and b"application/json" in answer
    assert "HTTP/1.1" in error_of(answer)["message"]


def test_a_head_has_a_deadline(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    assert talk(client).startswith(b"HTTP/1.1 408 ")
    answer = talk(client, b"GET /health HTTP/1.1\r\nx: ")
    assert answer.startswith(b"HTTP/1.1 408 ") and "0.05 s" in error_of(answer)["message"]
    # a whole request is not late, however long its answer takes
    assert b'"text":"hi"' in talk(client, POST + b"connection: close\r\n\r\n" + BODY)


def test_connections_beyond_the_bound_are_told(monkeypatch: pytest.MonkeyPatch,
                                               caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(http_protocol.BoundedHttpProtocol, "max_connections", 2)
    monkeypatch.setattr(http_protocol.BoundedHttpProtocol, "_warned_at", float("-inf"))
    with serving(fake_async_llm()) as client, contextlib.ExitStack() as stack:
        assert client.get("/health").status == 200
        caplog.set_level(logging.WARNING, "octavo.server")
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", client.port), 30))
                for _ in range(2)]
        for sock in held:  # each is in use, and stays open
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            answer = talk(client, POST + b"\r\n" + BODY)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer
            assert error_of(answer)["code"] == "too_many_connections"
        held[0].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert held[0].recv(65536).startswith(b"HTTP/1.1 200 ")
        held[1].close()
        wait_for(lambda: talk(client, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close"
                                      b"\r\n\r\n").startswith(b"HTTP/1.1 200 "))
    told = [r for r in caplog.records if "2 connections are open" in r.getMessage()]
    assert len(told) == 1


def test_far_too_many_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol.BoundedHttpProtocol, "max_connections", 0)
    monkeypatch.setattr(http_protocol, "_SPARE_FILES", 2)
    monkeypatch.setattr(http_protocol, "_SURPLUS_TIMEOUT_S", 0.05)
    with serving(fake_async_llm(hold_loading=True)) as client:
        # one may wait for its refusal, which comes with its request or after a moment
        assert talk(client).startswith(b"HTTP/1.1 503 ")
        with socket.create_connection(("127.0.0.1", client.port), 30) as first:
            assert first.recv(65536).startswith(b"HTTP/1.1 503 ")
        monkeypatch.setattr(http_protocol, "_SPARE_FILES", 0)
        assert talk(client) == b""


def test_the_limit_of_files_is_raised_as_far_as_it_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 1024), before[1]))
        allowed = http_protocol.connections_allowed()
        after = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert after[1] == before[1] and after[0] == min(before[1], 1 << 20)
        assert 4 <= allowed < after[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
