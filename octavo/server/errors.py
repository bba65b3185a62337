"""Errors -> HTTP: status, headers and the body. The body's shape is error_shapes.py's business."""

import http

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from octavo.errors import EngineLoadingError, InvalidRequestError, OctavoError, QueueFullError
from octavo.server.error_shapes import error_body

JSON = "application/json"
# loading takes seconds; a client that comes back sooner gains nothing
_LOADING_RETRY_S = 2
# last names of routes that OpenAI's, Ollama's, Cohere's and vLLM's clients know
_OTHER_MODELS = {"embeddings", "embed", "rerank", "score", "pooling", "classify"}


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


class RouteError(InvalidRequestError):
    """No such route, or one that does not take the method."""

    def __init__(self, message: str, *, http_status: int, code: str) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code


def error_response(error: OctavoError, scope: Scope) -> Response:
    """The answer that tells a client what it did wrong, or when to come back, in the shape of the
    scope's route."""
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
    return Response(error_body(error, scope), error.http_status, headers, JSON)


def internal_error() -> OctavoError:
    """What a client hears of a bug of ours. The log has the rest, under the request's id."""
    return OctavoError("internal error: the server's log says more, under this x-request-id")


async def on_octavo_error(request: Request, error: Exception) -> Response:
    """Starlette handler."""
    assert isinstance(error, OctavoError)
    return error_response(error, request.scope)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette handler of its own refusals: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"][:200], request.method
    if error.status_code == 404:
        message, code = f"there is no route {method} {path}", "not_found"
        if path.rpartition("/")[2] in _OTHER_MODELS:
            message += (": this server's model writes text; embeddings, rankings and scores come "
                        "of models trained for them, which Octavo does not run")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} does not take {method}: use {allowed}", "method_not_allowed"
    else:
        message = str(error.detail) or http.HTTPStatus(error.status_code).phrase
        code = "invalid_request"
    refusal = RouteError(message, http_status=error.status_code, code=code)
    return Response(error_body(refusal, request.scope), error.status_code,
                    dict(error.headers or {}), JSON)
