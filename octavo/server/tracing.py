"""Spans of requests, sent to an OpenTelemetry collector over HTTP. Needs the extra `otel`.

One span for each request that generates, made when it is over, with the attributes of the GenAI
semantic conventions (and those vLLM adds to them). No text of prompts or answers is in it. Export
runs in a thread of its own, and its failures are told now and then, never felt by requests.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from octavo import __version__
from octavo.errors import ConfigError
from octavo.server.request_record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

logger = logging.getLogger(__name__)

_TRACES_PATH = "/v1/traces"
# what a request of a route asks for; the other routes generate nothing
_OPERATIONS = {
    "/v1/chat/completions": "chat", "/v1/responses": "chat", "/v1/messages": "chat",
    "/api/chat": "chat", "/v1/completions": "text_completion", "/api/generate": "text_completion",
    "/v1/decisions": "decision",
}
# sampling parameter -> its attribute, where it has one
_PARAMS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
# a collector that is gone may not hold up the end of the server for longer
_CLOSE_TIMEOUT_S = 3.0
# a collector that is down is told of once in so long
_COMPLAINT_INTERVAL_S = 60.0


def open_tracing(endpoint: str) -> "RequestTracer":
    """Spans go to this collector. Raises ConfigError: no such URL, or the extra is missing.

    endpoint: http(s)://host:port, to which /v1/traces is added, or the whole URL. OTEL_* variables
    (headers, service name, sampler, batch sizes) count as everywhere.
    """
    url = _checked(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("--otlp-traces-endpoint needs OpenTelemetry, which is not installed: "
                          "pip install 'octavo[otel]'", param="otlp_traces_endpoint") from None
    quiet = _SeldomFilter()
    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter",
                 "opentelemetry.sdk._shared_internal"):
        logging.getLogger(name).addFilter(quiet)
    exporter = OTLPSpanExporter(url)
    return RequestTracer(BatchSpanProcessor(exporter))


def _checked(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"--otlp-traces-endpoint is {endpoint[:200]!r}: give the URL of a collector that takes "
            "OTLP over HTTP, such as http://localhost:4318/v1/traces",
            param="otlp_traces_endpoint")
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


class RequestTracer:
    """Makes spans of request records."""

    def __init__(self, processor: "SpanProcessor") -> None:
        """processor: where finished spans go."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found = Resource.create()
        if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
            found = found.merge(Resource({"service.name": "octavo"}))
        found = found.merge(Resource({"service.version": __version__}))
        self._provider = TracerProvider(resource=found, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._parents = TraceContextTextMapPropagator()

    def finish(self, record: RequestRecord) -> None:
        """The span of a request that is over, if it generates. Never raises."""
        operation = _OPERATIONS.get(record.route)
        if operation is None or record.method != "POST":
            return
        try:
            self._record(operation, record)
        except Exception:
            logger.exception("the span of request %s could not be made", record.request_id)

    def _record(self, operation: str, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        name = operation if record.model is None else f"{operation} {record.model}"
        span = self._tracer.start_span(
            name, context=self._parents.extract(record.trace_headers), kind=SpanKind.SERVER,
            attributes=span_attributes(operation, record), start_time=record.started_ns)
        if record.status >= 500 or record.finish_reason == "error":
            span.set_status(Status(StatusCode.ERROR))
        span.end(record.started_ns + int(record.duration_s * 1e9))

    def close(self) -> None:
        """Sends what is left, for as long as that may take, and stops. Idempotent."""
        ending = threading.Thread(target=self._provider.shutdown, name="octavo-otel-end",
                                  daemon=True)
        ending.start()
        ending.join(_CLOSE_TIMEOUT_S)


def span_attributes(operation: str, record: RequestRecord) -> Mapping[str, Any]:
    """What a span says. Durations in seconds."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation, "gen_ai.provider.name": "octavo",
        "gen_ai.request.id": record.request_id, "gen_ai.request.model": record.model,
        "http.request.method": record.method, "http.route": record.route,
        "http.response.status_code": record.status,
        "gen_ai.latency.e2e": record.duration_s,
    }
    if record.status >= 400:
        found["error.type"] = str(record.status)
    elif record.finish_reason in ("error", "abort"):
        found["error.type"] = record.finish_reason
    if record.params is not None:
        for name, attribute in _PARAMS.items():
            found[f"gen_ai.request.{attribute}"] = getattr(record.params, name)
        if record.params.n != 1:
            found["gen_ai.request.choice.count"] = record.params.n
    if record.generated:
        found |= {"gen_ai.response.id": record.response_id,
                  "gen_ai.response.model": record.model,
                  "gen_ai.response.finish_reasons": record.finish_reasons,
                  "gen_ai.usage.input_tokens": record.num_prompt_tokens,
                  "gen_ai.usage.output_tokens": record.num_generation_tokens,
                  "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
                  # vLLM's names of the same
                  "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
                  "gen_ai.usage.completion_tokens": record.num_generation_tokens,
                  **_latencies(record)}
    # an attribute has a value, and a whole number has 64 bits
    return {name: value for name, value in found.items() if value is not None
            and not (isinstance(value, int) and value >= 2**63)}


def _latencies(record: RequestRecord) -> dict[str, float]:
    """Of several prompts: those of the slowest."""
    found: dict[str, float] = {}
    if record.ttft_s is not None:
        found["time_to_first_token"] = record.ttft_s
    for name, values in (
        ("time_in_queue", [m.queued_s for m in record.generated]),
        ("time_in_model_prefill", [m.prefill_s for m in record.generated]),
        ("time_in_model_decode", [m.decode_s for m in record.generated]),
        ("time_in_model_inference", [m.prefill_s + m.decode_s for m in record.generated
                                     if m.prefill_s is not None and m.decode_s is not None]),
    ):
        known = [value for value in values if value is not None]
        if known:
            found[name] = max(known)
    return {f"gen_ai.latency.{name}": value for name, value in found.items()}


class _SeldomFilter(logging.Filter):
    """Lets one record through a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _COMPLAINT_INTERVAL_S
        return True
