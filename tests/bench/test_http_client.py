"""The HTTP parsers on bytes cut anywhere, and the client on a server that misbehaves."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from octavo.bench.http_client import EventParser, HttpClient, HttpError, ResponseParser
from octavo.errors import ConfigError

_CHUNKED = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
            b"5\r\nhello\r\n1;ext=1\r\n,\r\nA\r\n 123456789\r\n0\r\nTrailer: t\r\n\r\n")
_PLAIN = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone"


def _cut(data: bytes, rng: random.Random) -> list[bytes]:
    pieces = []
    while data:
        size = rng.randint(1, 7)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def test_responses_in_any_pieces() -> None:
    rng = random.Random(0)
    for _ in range(100):
        for data, status, body in ((_CHUNKED, 200, b"hello, 123456789"), (_PLAIN, 404, b"none"),
                                   (b"HTTP/1.1 100 Continue\r\n\r\n" + _PLAIN, 404, b"none")):
            parser = ResponseParser()
            found = b"".join(parser.feed(piece) for piece in _cut(data, rng))
            assert (parser.status, found) == (status, body)
            assert parser.is_done and parser.keep_alive


def test_a_body_until_the_connection_ends() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == b"ab"
    assert parser.feed(b"c") == b"c" and not parser.is_done
    parser.close()
    assert parser.is_done and not parser.keep_alive


def test_connection_close_and_empty_answers() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n")
    assert parser.is_done and not parser.keep_alive
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert parser.is_done and parser.keep_alive


@pytest.mark.parametrize("data", [
    b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70000,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 5000,
])
def test_what_is_not_http(data: bytes) -> None:
    with pytest.raises(HttpError):
        ResponseParser().feed(data)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\n", _PLAIN[:-1], _CHUNKED[:-2]])
def test_an_answer_that_breaks_off(data: bytes) -> None:
    parser = ResponseParser()
    parser.feed(data)
    with pytest.raises(HttpError, match="in the middle"):
        parser.close()


def test_events_in_any_pieces() -> None:
    stream = (b": ping\n\ndata: one\n\nevent: x\r\ndata: two\r\ndata:three\r\n\r\n"
              b"data: [DONE]\n\n")
    rng = random.Random(1)
    for _ in range(50):
        parser = EventParser()
        found = [event for piece in _cut(stream, rng) for event in parser.feed(piece)]
        assert found == [b"one", b"two\nthree", b"[DONE]"]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:port"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        HttpClient(url)


def test_a_header_cannot_hold_a_line_end() -> None:
    with pytest.raises(ConfigError, match="Authorization"):
        HttpClient("http://x", headers={"Authorization": "Bearer a\r\nEvil: 1"})


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _with_server(handler: Handler, use: Callable[[HttpClient], Awaitable[None]]) -> None:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with HttpClient(f"http://127.0.0.1:{port}/base/") as client:
        await use(client)
    server.close()
    await server.wait_closed()


def test_connections_are_kept_and_replaced() -> None:
    """The first connection serves two requests and is closed then; the third request finds out."""
    requests: list[tuple[int, bytes]] = []
    num_connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        number = num_connections
        for _ in range(2):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            body = await reader.readexactly(2)
            requests.append((number, head + body))
            writer.write(_PLAIN)
            await writer.drain()
        writer.close()

    async def use(client: HttpClient) -> None:
        for _ in range(3):
            async with client.request("POST", "/path", b"{}") as response:
                assert response.status == 404 and await response.read() == b"none"

    asyncio.run(_with_server(handler, use))
    assert [number for number, _ in requests] == [1, 1, 2]
    assert requests[0][1].startswith(b"POST /base/path HTTP/1.1\r\nHost: 127.0.0.1:")
    assert requests[0][1].endswith(b"Content-Length: 2\r\n\r\n{}")


def test_a_server_that_says_nothing_is_an_error() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def use(client: HttpClient) -> None:
        with pytest.raises((HttpError, ConnectionError)):
            async with client.request("GET", "/"):
                pass

    asyncio.run(_with_server(handler, use))
