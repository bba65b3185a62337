"""A small HTTP/1.1 client for load: asyncio streams, kept-alive connections, chunked bodies.

Cheap on purpose: the load generator shares its CPUs with the server it measures. Knows nothing of
what the bodies say. The parsers do no I/O.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from urllib.parse import urlsplit

from octavo.errors import ConfigError

MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4096  # of a chunk's size or a trailer
# a body without chunks or length, told apart from a length of 0
_UNTIL_CLOSE = -1


class HttpError(Exception):
    """The server's answer is not HTTP, or ended too early."""


class ResponseParser:
    """Bytes of one response in, its body out. Raises HttpError for what is not HTTP/1.1.

    Attributes: status and headers (lower-case names) once `has_head`; is_done: the response is
    complete; keep_alive: the connection can carry another request then.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_done = False
        self.keep_alive = True
        self._buffer = b""
        self._left = 0  # bytes of the body, or of the current chunk
        self._is_chunked = False
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        """Takes what has come; returns the body bytes in it."""
        self._buffer += data
        if not self.has_head and not self._read_head():
            return b""
        if self._is_chunked:
            return self._read_chunks()
        if self._left == _UNTIL_CLOSE:
            body, self._buffer = self._buffer, b""
            return body
        body, self._buffer = self._buffer[: self._left], self._buffer[self._left:]
        self._left -= len(body)
        self.is_done = self._left == 0
        return body

    def close(self) -> None:
        """The connection has ended. Raises HttpError if the response has not."""
        if self.has_head and not self._is_chunked and self._left == _UNTIL_CLOSE:
            self.is_done = True
        if not self.is_done:
            raise HttpError("the server closed the connection in the middle of an answer")

    def _read_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD_BYTES:
            raise HttpError(f"the answer's head is longer than {MAX_HEAD_BYTES} bytes")
        if not end:
            return False
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdecimal():
            raise HttpError(f"not an HTTP answer: {lines[0][:80]!r}")
        self._buffer = rest
        if parts[1].startswith("1"):  # 100 Continue and the like: the answer comes behind it
            return self._read_head()
        self.status = int(parts[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.has_head = True
        self.keep_alive = (parts[0] == "HTTP/1.1"
                           and self.headers.get("connection", "").lower() != "close")
        self._is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length", "")
        if self.status in (204, 304):
            length = "0"
        if not self._is_chunked:
            self._left = int(length) if length.isdecimal() else _UNTIL_CLOSE
            self.keep_alive = self.keep_alive and self._left != _UNTIL_CLOSE
        return True

    def _read_chunks(self) -> bytes:
        body = b""
        while not self.is_done:
            if self._left > 2:
                piece = self._buffer[: self._left - 2]
                body += piece
                self._buffer = self._buffer[len(piece):]
                self._left -= len(piece)
            if self._left > 0:  # the line end behind a chunk
                if self._left > 2 or len(self._buffer) < 2:
                    break
                self._buffer, self._left = self._buffer[2:], 0
            line, end, rest = self._buffer.partition(b"\r\n")
            if len(line) > _MAX_LINE_BYTES:
                raise HttpError("a chunk's size line is too long")
            if not end:
                break
            self._buffer = rest
            if self._in_trailer:
                self.is_done = not line
                continue
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise HttpError(f"not a chunk size: {line[:40]!r}") from None
            self._in_trailer = size == 0
            self._left = size + 2 if size else 0
        return body


class EventParser:
    """Bytes of an event stream in, the data of each event out."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is complete; comments and other fields are dropped."""
        lines = (self._buffer + data).split(b"\n")
        self._buffer = lines.pop()
        found = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found


class Response:
    """One answer; the body comes from `pieces` or `read`."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self._first = b""
        self.parser = ResponseParser()

    @property
    def status(self) -> int:
        return self.parser.status

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if self._first:
            yield self._first
        while not self.parser.is_done:
            body = await self._receive()
            if body:
                yield body

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def read_head(self) -> None:
        """Until status and headers are there."""
        while not self.parser.has_head:
            self._first += await self._receive()

    async def _receive(self) -> bytes:
        data = await self._connection.reader.read(_READ_BYTES)
        if not data:
            self.parser.close()
            return b""
        return self.parser.feed(data)


class _Connection:
    """A socket and how often it has been used."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.is_fresh = True


class HttpClient:
    """Requests to one server. A context manager: closes its connections.

    base_url: http:// or https:// with an optional path prefix. Raises ConfigError for another.
    """

    def __init__(self, base_url: str, *, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url is {base_url!r}: give http://HOST:PORT",
                              param="base_url")
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(f"base_url is {base_url!r}: its port is no port",
                              param="base_url") from None
        for name, value in (headers or {}).items():
            if any(c in name + value for c in "\r\n\0"):
                raise ConfigError(f"header {name!r} holds a line end", param="header")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        host = f"[{self._host}]" if ":" in self._host else self._host
        fixed = {"Host": f"{host}:{self._port}", "User-Agent": "octavo-bench",
                 "Accept": "*/*", **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    def request(self, method: str, path: str, body: bytes = b"") -> "_Exchange":
        """`async with client.request(...) as response`: sends, and gives the answer once its head
        is there. body: JSON. Raises OSError and HttpError."""
        head = (f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
        return _Exchange(self, head.encode("latin-1") + body)

    async def take(self) -> _Connection:
        """An idle connection, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.writer.is_closing() and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        return await self.connect()

    async def connect(self) -> _Connection:
        """A new connection."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._ssl)
        return _Connection(reader, writer)

    def give_back(self, connection: _Connection) -> None:
        """For the next request."""
        connection.is_fresh = False
        self._idle.append(connection)


class _Exchange:
    """One request and its answer."""

    def __init__(self, client: HttpClient, data: bytes) -> None:
        self._client, self._data = client, data
        self._connection: _Connection | None = None
        self._response: Response | None = None

    async def __aenter__(self) -> Response:
        connection = await self._client.take()
        try:
            return await self._send(connection)
        except (OSError, HttpError):
            # a kept connection may have been closed by the server just now: once more, on a new one
            connection.writer.close()
            if connection.is_fresh or (self._response and self._response.status):
                raise
        connection = await self._client.connect()
        return await self._send(connection)

    async def _send(self, connection: _Connection) -> Response:
        self._connection = connection
        self._response = Response(connection)
        try:
            connection.writer.write(self._data)
            await self._response.read_head()
        except BaseException:
            connection.writer.close()
            raise
        return self._response

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        assert self._connection is not None and self._response is not None
        parser = self._response.parser
        if error is None and parser.is_done and parser.keep_alive:
            self._client.give_back(self._connection)
        else:
            self._connection.writer.close()
