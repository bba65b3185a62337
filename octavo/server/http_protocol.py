"""The HTTP/1.1 side of one connection, with bounds: a request's head has a size and a deadline.

Builds on uvicorn's protocol; changes nothing of what a well-behaved client sees.
"""

import asyncio
import re

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from octavo.errors import InvalidRequestError
from octavo.server.error_shapes import openai_error
from octavo.server.errors import JSON

# A client that needs longer for a request line and headers holds a connection and nothing else.
HEAD_TIMEOUT_S = 30.0
# request line and headers together; servers commonly allow 8 to 64 KiB
MAX_HEAD_BYTES = 64 * 1024
# "Speak HTTP/2 with me if you can" is a wish that a server may pass over (RFC 9110, 7.8), but the
# parser would stop at it, before the body.
# A piece of a head may begin with that line.
_UPGRADE = re.compile(rb"(\A|\r\n)upgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)


class _HeadTooLargeError(Exception):
    """Stops the parser."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, refusing heads that are too large or too slow with our error object."""

    _head_bytes = 0  # of the lines parsed
    _unparsed_bytes = 0  # since the last complete head: one line without end is never parsed
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:  # not in the middle of a body
            if self._head_timer is None:
                self._await_head()
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(rb"\1x-upgrade: h2c", head + end[:2]) + end[2:] + rest
        super().data_received(data)
        if self._head_timer is not None:  # the head is not complete
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._refuse_size()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_came()
        self._unparsed_bytes = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed: uvicorn's only way to refuse."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_size()
        else:
            self._refuse(400, "the request is not valid HTTP/1.1")

    def _refuse_size(self) -> None:
        self._refuse(431, f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes: "
                     "send less")

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLargeError

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        self._head_timer = None
        self._refuse(408, f"no complete request arrived within {HEAD_TIMEOUT_S:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answers without the application, and closes."""
        self._head_came()
        if self.transport.is_closing():
            return
        error = InvalidRequestError(message)
        body = openai_error(error)
        self.transport.write(b"".join((
            STATUS_LINE[status], b"content-type: ", JSON.encode(), b"\r\ncontent-length: ",
            str(len(body)).encode(), b"\r\nconnection: close\r\n\r\n", body)))
        self.transport.close()
