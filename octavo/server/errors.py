"""Errors -> HTTP: status, headers and the error object. Knows no route."""

import http

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import EngineLoadingError, InvalidRequestError, OctavoError, QueueFullError
from octavo.server.protocol.responses import ErrorInfo, ErrorResponse

JSON = "application/json"
# loading takes seconds; a client that comes back sooner gains nothing
_LOADING_RETRY_S = 2


class BodyTooLargeError(InvalidRequestError):
    """The body is over the server's limit."""

    http_status = 413
    code = "request_too_large"


class InvalidAPIKeyError(InvalidRequestError):
    """No API key, or one the server does not know."""

    http_status = 401
    code = "invalid_api_key"


class MediaTypeError(InvalidRequestError):
    """The body is not declared to be JSON."""

    http_status = 415
    code = "unsupported_media_type"


class OriginError(InvalidRequestError):
    """A web page of an origin that may not call this server."""

    http_status = 403
    code = "origin_not_allowed"


class BodyTimeoutError(InvalidRequestError):
    """The body did not arrive in time."""

    http_status = 408
    code = "request_timeout"


def error_object(error: OctavoError) -> bytes:
    """{"error": {message, type, param, code}} as JSON."""
    return msgspec.json.encode(ErrorResponse(ErrorInfo(
        message=error.message, type=error.error_type, param=error.param, code=error.code,
    )))


def error_response(error: OctavoError) -> Response:
    """The answer that tells a client what it did wrong, or when to come back."""
    headers = {}
    if isinstance(error, QueueFullError):
        headers["retry-after"] = str(error.retry_after_s)
    elif isinstance(error, EngineLoadingError) or error.http_status == 503:
        headers["retry-after"] = str(_LOADING_RETRY_S)
    # clients try these again by themselves, but the same request would fail again
    if (error.http_status >= 500 or error.http_status == 408) and not error.retryable:
        headers["x-should-retry"] = "false"
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(error_object(error), error.http_status, headers, JSON)


def internal_error() -> OctavoError:
    """What a client hears of a bug of ours. The log has the rest, under the request's id."""
    return OctavoError("internal error: the server's log says more, under this x-request-id")


async def on_octavo_error(request: Request, error: Exception) -> Response:
    """Starlette handler."""
    assert isinstance(error, OctavoError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette handler of its own refusals: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"][:200], request.method
    if error.status_code == 404:
        message, code = f"there is no route {method} {path}", "not_found"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} does not take {method}: use {allowed}", "method_not_allowed"
    else:
        message = str(error.detail) or http.HTTPStatus(error.status_code).phrase
        code = "invalid_request"
    body = msgspec.json.encode(ErrorResponse(ErrorInfo(
        message=message, type=InvalidRequestError.error_type, code=code)))
    return Response(body, error.status_code, dict(error.headers or {}), JSON)
