"""Every exception Octavo raises on purpose. No logic, no imports beyond the standard library.

The user's mistake gets one of these; a bug of ours stays an AssertionError.

    OctavoError                          500
    ├── InvalidRequestError              400   a field of a request has a bad value
    │   ├── ContextLengthError           400   prompt (+ max_tokens) does not fit max_model_len
    │   └── RequestTooLargeError         400   can never fit the KV cache
    ├── RequestTimeoutError          408   the request took longer than the server allows
    ├── ModelNotFoundError               404   unknown model name or path
    ├── ModelLoadError                   500   a model file is broken
    │   └── UnsupportedModelError        500   sound, but not something Octavo can run
    ├── ModelOutputError                 500   the model computes no numbers
    ├── ConfigError                      500   an engine argument has a bad value
    ├── QueueFullError                   429   the waiting queue is at its bound
    ├── ListenersFullError               503   as many live views are open as may be
    ├── EngineLoadingError               503   the engine is not ready yet
    └── EngineDeadError                  503   the engine process is gone
"""


class OctavoError(Exception):
    """Root of the tree. `http_status` and `error_type` say how the server reports it.

    `retryable` tells a client whether sending the same request again can help.
    """

    http_status = 500
    error_type = "server_error"
    code: str | None = None
    retryable = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequestError(OctavoError):
    """A request field has a bad value. The message names field, value and fix."""

    http_status = 400
    error_type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt plus max_tokens, exceeds max_model_len."""

    code = "context_length_exceeded"


class RequestTooLargeError(InvalidRequestError):
    """The request could never fit the KV cache, even alone."""

    code = "kv_cache_too_small"


class RequestTimeoutError(OctavoError):
    """The request was ended because it took longer than the server allows."""

    http_status = 408
    error_type = "invalid_request_error"
    code = "request_timeout"


class ModelNotFoundError(OctavoError):
    """No model of that name is served, or nothing is at that path."""

    http_status = 404
    error_type = "invalid_request_error"
    code = "model_not_found"


class ModelLoadError(OctavoError):
    """A model file is broken. One line: the file, the tensor or key, and the reason."""


class UnsupportedModelError(ModelLoadError):
    """The file is sound, but its architecture or a setting is not one Octavo runs."""


class ModelOutputError(OctavoError):
    """The model's scores for the next token are not numbers. No request is to blame."""

    code = "model_output_not_finite"


class ConfigError(OctavoError):
    """An engine argument has a bad value. The message names argument, value and fix."""


class QueueFullError(OctavoError):
    """The waiting queue is at its bound; try again after `retry_after_s` seconds."""

    http_status = 429
    error_type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retryable = True
    retry_after_s = 1


class ListenersFullError(OctavoError):
    """As many live views are open as may be."""

    http_status = 503
    error_type = "service_unavailable_error"
    code = "too_many_listeners"
    retryable = True


class EngineLoadingError(OctavoError):
    """The engine is not ready to serve yet."""

    http_status = 503
    error_type = "service_unavailable_error"
    code = "engine_loading"
    retryable = True


class EngineDeadError(OctavoError):
    """The engine process is gone; its requests have failed."""

    http_status = 503
    error_type = "service_unavailable_error"
    code = "engine_dead"
    retryable = True


def error_of(class_name: str | None, message: str) -> OctavoError:
    """The error a class name and a message on the wire stand for; OctavoError if unknown."""
    found = globals().get(class_name or "", OctavoError)
    if not (isinstance(found, type) and issubclass(found, OctavoError)):
        found = OctavoError
    return found(message)
