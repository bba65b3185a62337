"""Streamed answers: an async generator of ready-made bytes -> an HTTP answer that never hangs.

Watches the client while it writes, keeps silent connections alive with comments, and turns a
failure in the middle into one error event. Knows nothing of what the events say.
"""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.error_shapes import REQUEST_ID, openai_error
from octavo.server.errors import internal_error
from octavo.server.generation import ClientGoneError

logger = logging.getLogger("octavo.server")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
# Proxies commonly cut a connection that is silent for 30 to 60 s; a long prefill is silent.
PING_INTERVAL_S = 10.0
# A client that reads nothing for this long gets no more tokens computed for it.
STALL_TIMEOUT_S = 60.0


def event(data: bytes) -> bytes:
    """One data event. data is one line of JSON."""
    return b"data: " + data + b"\n\n"


@dataclasses.dataclass(slots=True, frozen=True)
class StreamForm:
    """What streams of one API have in common. ping: keeps a silent connection alive; b"" where
    that API has nothing of the kind. error: a failure in mid-stream, with the request's id."""

    content_type: str
    ping: bytes
    error: Callable[[OctavoError, str], bytes]


OPENAI_STREAM = StreamForm("text/event-stream; charset=utf-8", PING,
                           lambda error, request_id: event(openai_error(error, request_id)))


class EventStream(Response):
    """Sends what `events` yields. When the client leaves, `on_leave` is awaited: it must make
    `events` end (by ClientGoneError). `events` is always closed."""

    def __init__(self, events: AsyncGenerator[bytes, None], *,
                 on_leave: Callable[[], Awaitable[None]], form: StreamForm = OPENAI_STREAM,
                 ping_interval_s: float = PING_INTERVAL_S) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({
            "content-type": form.content_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # nginx would collect the stream otherwise
        })
        self._events = events
        self._form = form
        self._on_leave = on_leave
        self._ping_interval_s = ping_interval_s
        self._last_sent = 0.0
        self._is_sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await send({"type": "http.response.start", "status": self.status_code,
                    "headers": self.raw_headers})
        clock = asyncio.get_running_loop().time
        self._last_sent = clock()
        watchdog = asyncio.create_task(self._watch(receive, send))
        try:
            async for data in _with_error_event(
                    self._events, self._form, scope.get(REQUEST_ID, "")):
                self._is_sending = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._is_sending = False
                self._last_sent = clock()
        except ClientGoneError:
            return
        finally:
            watchdog.cancel()
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Until the client leaves: pings when nothing was sent for a while."""
        clock = asyncio.get_running_loop().time
        while True:
            silent = clock() - self._last_sent
            try:
                async with asyncio.timeout(max(self._ping_interval_s - silent, 0.01)):
                    message = await receive()
            except TimeoutError:
                silent = clock() - self._last_sent
                if self._is_sending:
                    if silent > STALL_TIMEOUT_S:
                        break
                    await asyncio.sleep(self._ping_interval_s)
                elif silent >= self._ping_interval_s:
                    if self._form.ping:
                        await send({"type": "http.response.body", "body": self._form.ping,
                                    "more_body": True})
                    self._last_sent = clock()
                continue
            if message["type"] == "http.disconnect":
                break
        await self._on_leave()


async def _with_error_event(events: AsyncGenerator[bytes, None], form: StreamForm,
                            request_id: str) -> AsyncGenerator[bytes, None]:
    """The status line is out: what goes wrong now can only be told as an event."""
    try:
        async for data in events:
            yield data
    except ClientGoneError:
        raise
    except OctavoError as error:
        yield form.error(error, request_id)
    except Exception:
        logger.exception("a stream failed")
        yield form.error(internal_error(), request_id)
