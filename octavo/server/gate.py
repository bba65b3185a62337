"""What every request passes: request id, origin, API key, its record, and the last net for bugs of
ours.

Plain ASGI, outside of the routes. Knows no route but the open ones.
"""

import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.error_shapes import REQUEST_ID, is_anthropic
from octavo.server.errors import (
    InvalidAPIKeyError,
    OriginError,
    error_response,
    internal_error,
)
from octavo.server.request_record import RequestRecord, leave

logger = logging.getLogger("octavo.server")

# Probes and scrapers have no key, and learn nothing here that a key protects.
OPEN_PATHS = frozenset({"/", "/health", "/v1/health", "/ready", "/metrics", "/ping"})
# The files of the page in the browser: the same for everyone.
OPEN_PREFIX = "/page/"
_MAX_ID_CHARS = 128
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class RequestGate:
    """Gives each answer an x-request-id (the client's own, if it is usable) and each request its
    record, and turns an exception nobody expected into an error object. `observe` gets the record
    when the request is over."""

    def __init__(self, app: ASGIApp, *, observe: Callable[[RequestRecord, Scope], None]) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _usable_id(headers.get("x-request-id"))
        scope[REQUEST_ID] = request_id
        record = RequestRecord(
            request_id, scope["method"], scope["path"],
            {name: headers[name] for name in ("traceparent", "tracestate") if name in headers})

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if is_anthropic(scope):  # whose clients look for it under this name
                    headers["request-id"] = request_id
            await send(message)

        entered = record.enter()
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("request %s failed: %s %s", request_id, record.method,
                             shown_path(record.path))
            if record.status:
                raise  # part of an answer is out: the server must cut the connection
            await error_response(internal_error(), scope)(scope, receive, send_with_id)
        finally:
            leave(entered)
            record.duration_s = time.monotonic() - record.started_s
            self._observe(record, scope)


class OriginCheck:
    """Refuses what a web page of a foreign origin asks the server to do.

    A browser lets every page send some kinds of POST to every address, and only hides the answer.
    Programs send no Origin and pass. A page passes if its origin is allowed, or if it was served
    from here: its origin is the request's Host. Where only this machine can connect
    (`is_local`), that Host must also be an address or localhost: a page may point a name of its
    own at 127.0.0.1, and be "from here" by that name.
    """

    def __init__(self, app: ASGIApp, *, allowed_origins: Sequence[str], is_local: bool) -> None:
        self._app = app
        self._allowed = frozenset(allowed_origins)
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING or self._may(scope):
            await self._app(scope, receive, send)
            return
        origin = Headers(scope=scope)["origin"][:200]
        error = OriginError(
            f"the web page's origin {origin!r} may not call this server: start it with "
            f"--allowed-origins ORIGIN to allow it")
        await error_response(error, scope)(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or "*" in self._allowed or origin in self._allowed:
            return True
        scheme, _, authority = origin.partition("://")
        page = _host_and_port(authority, scheme)
        here = _host_and_port(headers.get("host", ""), scheme)
        if page is None or page != here:
            return False
        return not self._is_local or is_address(page[0])


def is_address(host: str) -> bool:
    """Whether it is a literal IP address or localhost, which nobody can point elsewhere."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_and_port(authority: str, scheme: str) -> tuple[str, int] | None:
    """("localhost", 8000) of "localhost:8000"; None for what is no host."""
    try:
        parts = urlsplit(f"//{authority}")
        port = parts.port or _DEFAULT_PORTS.get(scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


class KeyCheck:
    """Refuses requests without a known API key, but for the open routes."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]) or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        error = InvalidAPIKeyError(
            "no valid API key: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        await error_response(error, scope)(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        kind, _, token = headers.get("authorization", "").partition(" ")
        # some clients send both, one of them for another server
        given = [headers.get("x-api-key", ""), token if kind.lower() == "bearer" else ""]
        digests = [_digest(key.strip()) for key in given]
        # every key is compared, in constant time: how long it takes says nothing
        return sum([hmac.compare_digest(digest, known)
                    for known in self._digests for digest in digests]) > 0


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _usable_id(given: str | None) -> str:
    if given and len(given) <= _MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return secrets.token_hex(16)


def shown_path(path: str) -> str:
    """A path for the log: no control characters, bounded."""
    return path[:200] if path.isprintable() else repr(path[:200])
