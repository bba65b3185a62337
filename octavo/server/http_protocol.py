"""The HTTP/1.1 side of one connection, with bounds: a request's head has a size and a deadline.

Builds on uvicorn's protocol; changes nothing of what a well-behaved client sees.
"""

import asyncio
import logging
import os
import re
import resource
import sys
import time
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from octavo.errors import InvalidRequestError, OctavoError
from octavo.server.error_shapes import openai_error
from octavo.server.errors import JSON

# A client that needs longer for a request line and headers holds a connection and nothing else.
HEAD_TIMEOUT_S = 30.0
# request line and headers together; servers commonly allow 8 to 64 KiB
MAX_HEAD_BYTES = 64 * 1024
# under this name a request's scope has a function that cuts its connection, whatever was not sent
ABORT = "octavo.abort"
# "Speak HTTP/2 with me if you can" is a wish that a server may pass over (RFC 9110, 7.8), but the
# parser would stop at it, before the body.
# A piece of a head may begin with that line.
_UPGRADE = re.compile(rb"(\A|\r\n)upgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)

logger = logging.getLogger("octavo.server")

# Files that a server opens beside its connections: an engine that is started again, helpers that
# check grammars, what Python reads. Half of them hold connections that wait for their refusal.
_SPARE_FILES = 24
_MIN_CONNECTIONS = 4
# a connection too many is told so when its request comes, and closed without one
_SURPLUS_TIMEOUT_S = 1.0
_WARN_EVERY_S = 60.0
_MAX_FILES = 1 << 20  # where the system has no bound of its own


class TooManyConnectionsError(OctavoError):
    """The process has no file descriptor left for this connection."""

    http_status = 503
    error_type = "service_unavailable_error"
    code = "too_many_connections"
    retryable = True


class _HeadTooLargeError(Exception):
    """Stops the parser."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, refusing heads that are too large or too slow with our error object, and
    connections beyond `max_connections`: where accept() itself fails, the event loop drops
    connections without a word."""

    max_connections: ClassVar[int] = sys.maxsize
    _warned_at: ClassVar[float] = float("-inf")

    _is_surplus = False
    _head_bytes = 0  # of the lines parsed
    _unparsed_bytes = 0  # since the last complete head: one line without end is never parsed
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        num_surplus = len(self.connections) - self.max_connections
        if num_surplus <= 0:
            self._await_head()
            return
        self._is_surplus = True
        self._warn()
        if num_surplus > _SPARE_FILES // 2:
            transport.abort()
        else:
            self._head_timer = self.loop.call_later(_SURPLUS_TIMEOUT_S, self._refuse_surplus)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_surplus:
            self._refuse_surplus()
            return
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
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
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

    def _refuse_surplus(self) -> None:
        self._answer(TooManyConnectionsError(
            f"the server has {self.max_connections} connections open and may have no more: try "
            "again"), b"retry-after: 1\r\n")

    def _warn(self) -> None:
        kind, moment = type(self), time.monotonic()
        if moment - kind._warned_at >= _WARN_EVERY_S:
            kind._warned_at = moment
            logger.warning("%d connections are open, as many as the limit of open files allows "
                           "(ulimit -n): further ones are refused", self.max_connections)

    def _refuse(self, status: int, message: str) -> None:
        error = InvalidRequestError(message)
        error.http_status = status
        self._answer(error)

    def _answer(self, error: OctavoError, headers: bytes = b"") -> None:
        """Answers without the application, and closes."""
        self._head_came()
        if self.transport.is_closing():
            return
        body = openai_error(error)
        self.transport.write(b"".join((
            STATUS_LINE[error.http_status], b"content-type: ", JSON.encode(),
            b"\r\ncontent-length: ", str(len(body)).encode(), b"\r\n", headers,
            b"connection: close\r\n\r\n", body)))
        self.transport.close()


def bounded_protocol(max_connections: int) -> type[BoundedHttpProtocol]:
    """The protocol for one server."""
    most = max_connections

    class Protocol(BoundedHttpProtocol):
        max_connections = most

    return Protocol


def connections_allowed() -> int:
    """How many connections the limit of open files allows, beside what the process has open.
    Raises that limit as far as it may be raised first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft == resource.RLIM_INFINITY:
        soft = _MAX_FILES
    num_open = len(os.listdir("/proc/self/fd"))
    return max(soft - num_open - _SPARE_FILES, _MIN_CONNECTIONS)
