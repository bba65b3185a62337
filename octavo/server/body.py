"""Reads a request's body: bounded in size and in time."""

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from octavo.errors import InvalidRequestError
from octavo.server.errors import BodyTimeoutError, BodyTooLargeError, MediaTypeError
from octavo.server.protocol.decode import decode_request
from octavo.server.state import ServerState

T = TypeVar("T", bound=msgspec.Struct)

# A client that sends its body slower than this holds a connection and has lost interest.
_BODY_TIMEOUT_S = 60.0


async def read_request(request: Request, state: ServerState, kind: type[T], *,
                       any_media_type: bool = False) -> T:
    """The typed request of a body. Raises InvalidRequestError and its subclasses.

    any_media_type: for APIs whose users send JSON under other types; web pages still may not.
    """
    if not any_media_type or "origin" in request.headers:
        _check_media_type(request)
    body = await _read_body(request, state.section.max_body_bytes)
    return decode_request(body, kind, strict=state.section.strict_params)


async def _read_body(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise BodyTimeoutError(f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s") from None
    except ClientDisconnect:
        raise InvalidRequestError("the client left before its body was complete") from None
    return b"".join(chunks)


def _check_media_type(request: Request) -> None:
    """A web page may send text/plain and forms anywhere without asking; JSON it may not.

    Programs that name no type are let through: a page cannot send a body without one and without
    its origin.
    """
    given = request.headers.get("content-type")
    if given is None and "origin" not in request.headers:
        return
    kind = (given or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        shown = "missing" if given is None else repr(given[:80])
        raise MediaTypeError(f"Content-Type is {shown}: send the header "
                             "'Content-Type: application/json'")


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {limit} bytes")
