"""GET /octavo/events: what the engine does, step by step. GET /octavo/state: one snapshot.

The events are the engine's; docs/LIVE_VIEW.md describes them. No text of prompts or outputs.
"""

import asyncio
import math
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octavo.engine.live_feed import LiveListener
from octavo.errors import EngineDeadError, InvalidRequestError, RequestTimeoutError
from octavo.server.errors import JSON
from octavo.server.http_protocol import ABORT
from octavo.server.sse import OPENAI_STREAM, EventStream
from octavo.server.state import ServerState

MIN_INTERVAL_S, DEFAULT_INTERVAL_S, MAX_INTERVAL_S = 0.05, 0.1, 5.0
_PING_INTERVAL_S = 15.0
# A page in a computer that sleeps reads nothing: it gets this long to take the end of its stream,
# so that a server that stops does not wait for it.
_LAST_WORD_S = 1.0
# a snapshot waits for the end of a step, which takes seconds for a large model on a slow machine
_SNAPSHOT_TIMEOUT_S = 30.0


def routes(state: ServerState) -> list[Route]:
    """The routes of this file."""

    async def events(request: Request) -> Response:
        interval_s = _interval(request.query_params.get("interval"))
        if request.method == "HEAD":
            return Response(headers={"content-type": OPENAI_STREAM.content_type})
        return _LiveStream(state.llm.watch(interval_s))

    async def snapshot(request: Request) -> Response:
        listener = state.llm.watch(MIN_INTERVAL_S)
        try:
            async with asyncio.timeout(_SNAPSHOT_TIMEOUT_S):
                while True:
                    found = dict(await listener.get())
                    if "state" in found:
                        return Response(found["state"], media_type=JSON)
                    if not found:
                        raise EngineDeadError("the server is shutting down: no snapshot is taken")
        except TimeoutError:
            raise RequestTimeoutError(
                f"the engine gave no snapshot within {_SNAPSHOT_TIMEOUT_S:g} s: it is in a long "
                "step") from None
        finally:
            listener.close()

    return [Route("/octavo/events", events, methods=["GET"]),
            Route("/octavo/state", snapshot, methods=["GET"])]


class _LiveStream(EventStream):
    """The events of a listener. When that ends, so does the connection, read or not."""

    def __init__(self, listener: LiveListener) -> None:
        super().__init__(_messages(listener), on_leave=self._leave,
                         ping_interval_s=_PING_INTERVAL_S)
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        cutting = asyncio.create_task(self._cut(scope))
        try:
            await super().__call__(scope, receive, send)
        finally:
            cutting.cancel()
            self._listener.close()

    async def _leave(self) -> None:
        self._listener.close()

    async def _cut(self, scope: Scope) -> None:
        await self._listener.wait_ended()
        await asyncio.sleep(_LAST_WORD_S)
        if ABORT in scope:
            scope[ABORT]()


def _interval(given: str | None) -> float:
    if given is None:
        return DEFAULT_INTERVAL_S
    try:
        interval_s = float(given)
    except ValueError:
        interval_s = math.nan
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidRequestError(
            f"interval is {given[:40]!r}: give seconds from {MIN_INTERVAL_S:g} to "
            f"{MAX_INTERVAL_S:g}", param="interval")
    return interval_s


async def _messages(listener: LiveListener) -> AsyncGenerator[bytes, None]:
    """Server-sent events, until the listener ends."""
    while found := await listener.get():
        yield b"".join(b"event: %b\ndata: %b\n\n" % (name.encode(), data)
                       for name, data in found)
