"""The body of an error, in the shape of the API whose route was called. Knows no HTTP."""

from collections.abc import Callable

import msgspec
from starlette.types import Scope

from octavo.errors import OctavoError
from octavo.server.protocol.anthropic import AnthropicErrorInfo, AnthropicErrorResponse
from octavo.server.protocol.ollama import OllamaErrorResponse
from octavo.server.protocol.responses import ErrorInfo, ErrorResponse

REQUEST_ID = "octavo.request_id"  # where a scope keeps the id of its request

_ANTHROPIC_PATH = "/v1/messages"
_OLLAMA_PATH = "/api"
_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error",
    500: "api_error", 503: "overloaded_error",
}


def error_body(error: OctavoError, scope: Scope) -> bytes:
    """JSON, for the route of this scope."""
    make: Callable[[OctavoError, str], bytes] = openai_error
    if is_anthropic(scope):
        make = anthropic_error
    elif _is_below(scope, _OLLAMA_PATH):
        make = ollama_error
    return make(error, scope.get(REQUEST_ID, ""))


def is_anthropic(scope: Scope) -> bool:
    """Whether the path is one of Anthropic's API."""
    return _is_below(scope, _ANTHROPIC_PATH)


def openai_error(error: OctavoError, request_id: str = "") -> bytes:
    """{"error": {message, type, param, code}}."""
    return msgspec.json.encode(ErrorResponse(ErrorInfo(
        message=error.message, type=error.error_type, param=error.param, code=error.code)))


def anthropic_error(error: OctavoError, request_id: str = "") -> bytes:
    """{"type": "error", "error": {type, message}, "request_id"}."""
    kind = _ANTHROPIC_TYPES.get(error.http_status, "invalid_request_error")
    return msgspec.json.encode(AnthropicErrorResponse(
        error=AnthropicErrorInfo(type=kind, message=error.message),
        request_id=request_id or None))


def ollama_error(error: OctavoError, request_id: str = "") -> bytes:
    """{"error": message}."""
    return msgspec.json.encode(OllamaErrorResponse(error=error.message))


def _is_below(scope: Scope, root: str) -> bool:
    path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
    return path == root or path.startswith(root + "/")
