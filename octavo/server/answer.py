"""Sends a started generation to its client, whole or streamed. Knows no wire format: the answer
shapes itself.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import RequestOutput
from octavo.server.errors import JSON
from octavo.server.generation import ClientGoneError, Generation
from octavo.server.sse import OPENAI_STREAM, EventStream, StreamForm

# the status of an answer that nobody receives, for the log
CLIENT_CLOSED_REQUEST = 499


class Answer(Protocol):
    """What a route makes of its outputs."""

    @property
    def generation(self) -> Generation: ...
    def whole(self, outputs: list[RequestOutput]) -> msgspec.Struct:
        """The answer in one piece, from the outputs in prompt order."""
    def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""


async def respond(answer: Answer, request: Request, *, stream: bool,
                  form: StreamForm = OPENAI_STREAM) -> Response:
    """The response of a started answer. A client that leaves ends the generation."""
    if stream:
        return EventStream(answer.events(), on_leave=answer.generation.client_left, form=form)
    try:
        outputs = await answer.generation.finals(request.receive)
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(msgspec.json.encode(answer.whole(outputs)), media_type=JSON)
