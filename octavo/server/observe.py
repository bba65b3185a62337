"""RequestObserver: what is made of a request's record when it is over: a count, a log line, a span.

Knows routes by their paths only. No text of a prompt or an answer, and no key, gets here.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from octavo.log_format import fields
from octavo.server.gate import is_open, shown_path
from octavo.server.http_metrics import HttpMetrics
from octavo.server.request_record import OTHER_ROUTE, RequestRecord

logger = logging.getLogger("octavo.server")

_CONVERTER = re.compile(r":\w+}")  # {name:path} is {name} to people


class Tracer(Protocol):
    """Who makes spans of records (server/tracing.py)."""

    def finish(self, record: RequestRecord) -> None: ...
    def close(self) -> None: ...


class RequestObserver:
    """Called once a request."""

    def __init__(self, routes: Sequence[BaseRoute], metrics: HttpMetrics, *, log_requests: bool,
                 tracer: Tracer | None = None) -> None:
        self._paths = {r.path for r in routes if isinstance(r, Route)}
        self._by_endpoint: dict[object, str] = {
            r.endpoint: _CONVERTER.sub("}", r.path) for r in routes if isinstance(r, Route)}
        self._metrics = metrics
        self._log_requests = log_requests
        self._tracer = tracer

    def __call__(self, record: RequestRecord, scope: Scope) -> None:
        record.route = self._route(scope)
        self._metrics.observe(record)
        if self._log_requests and not is_open(record.path):
            logger.info("%s", _line(record), extra=fields(_fields(record)))
        if self._tracer is not None:
            self._tracer.finish(record)

    def _route(self, scope: Scope) -> str:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._paths:
            return path
        return self._by_endpoint.get(scope.get("endpoint"), OTHER_ROUTE)


def _line(record: RequestRecord) -> str:
    text = (f"{record.method} {shown_path(record.path)} {record.status} {record.duration_s:.3f} s "
            f"{record.request_id}")
    if not record.generated:
        return text
    ttft = record.ttft_s
    return (f"{text} prompt {record.num_prompt_tokens} cached {record.num_cached_tokens} "
            f"generated {record.num_generation_tokens} "
            f"ttft {'-' if ttft is None else f'{ttft:.3f} s'} "
            f"finish {record.finish_reason or '-'}")


def _fields(record: RequestRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "request_id": record.request_id, "method": record.method, "route": record.route,
        "path": shown_path(record.path), "status": record.status,
        "duration_ms": round(record.duration_s * 1e3, 3)}
    if record.generated:
        ttft = record.ttft_s
        found |= {
            "response_id": record.response_id, "model": record.model,
            "prompt_tokens": record.num_prompt_tokens,
            "cached_tokens": record.num_cached_tokens,
            "generation_tokens": record.num_generation_tokens,
            "ttft_ms": None if ttft is None else round(ttft * 1e3, 3),
            "finish_reason": record.finish_reason}
    return found
