"""Requests of an OpenAI batch file, answered by the application itself: no socket in between.

One JSON object a line: {custom_id, method, url, body} in; {id, custom_id, response: {status_code,
request_id, body}, error} out, in the order in which they end. Knows no file.
"""

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from octavo.errors import InvalidRequestError

# the routes that a batch may use: those that answer once and change nothing
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/decisions",
        "/v1/messages")
_MAX_CUSTOM_ID_CHARS = 512
_MAX_LINE_BYTES = 16 * 1024 * 1024


class BatchLine(msgspec.Struct, kw_only=True):
    """One request of a batch file."""

    custom_id: str
    method: str = "POST"
    url: str
    body: dict[str, Any]


class BatchAnswer(msgspec.Struct, kw_only=True):
    """What a route answered. body: its JSON, also that of a refusal."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct, kw_only=True):
    """Why a line was never sent to a route."""

    code: str
    message: str


class BatchResult(msgspec.Struct, kw_only=True):
    """One line of the output: an answer, or an error."""

    id: str
    custom_id: str | None
    response: BatchAnswer | None = None
    error: BatchError | None = None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code < 400


async def run_lines(app: ASGIApp, lines: Iterable[bytes], *,
                    concurrency: int) -> AsyncIterator[BatchResult]:
    """Sends each line to its route, `concurrency` at a time; yields results as they come.

    Empty lines are skipped. A line that is no request gives a result with `error` and its number.
    """
    numbered: Iterator[tuple[int, bytes]] = enumerate(lines, start=1)
    seen: set[str] = set()
    running: set[asyncio.Task[BatchResult]] = set()
    try:
        more = True
        while more or running:
            while more and len(running) < concurrency:
                found = next(numbered, None)
                more = found is not None
                if found is not None and found[1].strip():
                    running.add(asyncio.create_task(_run_line(app, *found, seen)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _run_line(app: ASGIApp, number: int, data: bytes, seen: set[str]) -> BatchResult:
    result_id = f"batch_req_{secrets.token_hex(12)}"
    custom_id = None
    try:
        line = _decode(number, data)
        custom_id = line.custom_id
        _check(number, line, seen)
    except InvalidRequestError as error:
        return BatchResult(id=result_id, custom_id=custom_id,
                           error=BatchError(code="invalid_line", message=error.message))
    seen.add(line.custom_id)
    answer = await _post(app, line.url, msgspec.json.encode(line.body), result_id)
    return BatchResult(id=result_id, custom_id=custom_id, response=answer)


def _decode(number: int, data: bytes) -> BatchLine:
    if len(data) > _MAX_LINE_BYTES:
        raise InvalidRequestError(f"line {number} is longer than {_MAX_LINE_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=BatchLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"line {number} is no request of a batch: {error}") from None


def _check(number: int, line: BatchLine, seen: set[str]) -> None:
    def bad(field: str, value: object, fix: str) -> InvalidRequestError:
        return InvalidRequestError(f"line {number}: {field} is {str(value)[:80]!r}: {fix}",
                                   param=field)

    if not 0 < len(line.custom_id) <= _MAX_CUSTOM_ID_CHARS:
        raise bad("custom_id", line.custom_id, f"give 1 to {_MAX_CUSTOM_ID_CHARS} characters")
    if line.custom_id in seen:
        raise bad("custom_id", line.custom_id, "another line has it, give each its own")
    if line.method != "POST":
        raise bad("method", line.method, "give POST")
    if line.url not in URLS:
        raise bad("url", line.url, f"give one of {', '.join(URLS)}")
    if line.body.get("stream"):
        raise bad("body.stream", line.body["stream"], "a batch has whole answers, leave it out")


@dataclasses.dataclass(slots=True)
class _Exchange:
    """One request and what is heard back."""

    body: bytes
    status: int = 0
    request_id: str = ""
    data: bytes = b""
    was_read: bool = False

    async def receive(self) -> Message:
        if self.was_read:  # this client never leaves
            await asyncio.Event().wait()
        self.was_read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = dict(message["headers"])
            self.request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        else:
            self.data += message.get("body", b"")


async def _post(app: ASGIApp, url: str, body: bytes, request_id: str) -> BatchAnswer:
    exchange = _Exchange(body)
    await app({
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": url, "raw_path": url.encode(), "root_path": "",
        "query_string": b"", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                    (b"x-request-id", request_id.encode())],
    }, exchange.receive, exchange.send)
    return BatchAnswer(status_code=exchange.status, request_id=exchange.request_id,
                       body=msgspec.Raw(exchange.data or b"null"))
