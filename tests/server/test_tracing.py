"""Spans of requests: what they say, whose children they are, and that nobody waits for them."""

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from octavo.cli.main import main
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ConfigError
from octavo.server import tracing
from octavo.server.request_record import RequestRecord
from octavo.server.tracing import RequestTracer, open_tracing
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient, read_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the-treasure-is-under-the-oak"


class Spans:
    """A server whose spans are kept here."""

    def __init__(self, client: HttpClient, exporter: InMemorySpanExporter) -> None:
        self.client = client
        self._exporter = exporter

    def take(self, count: int = 1) -> list[ReadableSpan]:
        """The next spans: they are made after the client has its answer."""
        wait_for(lambda: len(self._exporter.get_finished_spans()) >= count)
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        assert len(found) == count
        return found


@pytest.fixture(scope="module")
def spans() -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    tracer = RequestTracer(SimpleSpanProcessor(exporter))
    with serving(fake_async_llm(max_model_len=4096), tracer=tracer) as client:
        yield Spans(client, exporter)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_chat(spans: Spans) -> None:
    answer = spans.client.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "temperature": 0.5,
        "top_p": 0.9, "seed": 7, "stop": ["~"], "stream": True}, headers={"x-request-id": "mine"})
    assert answer.is_done
    (span,) = spans.take()
    found = attributes_of(span)
    assert span.name == "chat fake-model" and span.kind.name == "SERVER" and span.parent is None
    usage = spans.client.chat(SECRET, max_tokens=1).json["usage"]
    spans.take()
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "fake-model", "gen_ai.response.model": "fake-model",
        "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9, "gen_ai.request.seed": 7, "gen_ai.request.id": "mine",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"], "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0, "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
    }
    assert expected.items() <= found.items()
    assert found["gen_ai.response.id"] == answer.events[0]["id"]
    assert "error.type" not in found and SECRET not in str(found)
    e2e, ttft = found["gen_ai.latency.e2e"], found["gen_ai.latency.time_to_first_token"]
    assert 0 < ttft <= e2e
    for phase in ("queue", "model_prefill", "model_decode", "model_inference"):
        assert 0 <= found[f"gen_ai.latency.time_in_{phase}"] <= e2e
    assert span.start_time is not None and span.end_time is not None
    assert span.end_time - span.start_time == int(e2e * 1e9)
    assert span.resource.attributes["service.name"] == "octavo"


@pytest.mark.parametrize(("path", "body", "name", "output"), [
    ("/v1/completions", {"prompt": [97] * 3, "max_tokens": 2, "n": 3},
     "text_completion fake-model", 6),
    ("/v1/completions", {"prompt": [[97] * 3, [98] * 4], "max_tokens": 2},
     "text_completion fake-model", 4),
    ("/v1/responses", {"input": "SAY:hi|", "model": "alias/fake"}, "chat alias/fake", 3),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
     "chat fake-model", 4),
    ("/api/generate", {"model": "fake-model", "prompt": "SAY:hi|"},
     "text_completion fake-model", 3),
])
def test_routes_that_generate(spans: Spans, path: str, body: dict[str, Any], name: str,
                              output: int) -> None:
    assert spans.client.post(path, body).status == 200
    (span,) = spans.take()
    assert span.name == name
    assert attributes_of(span)["gen_ai.usage.output_tokens"] == output


def test_other_routes_have_no_spans(spans: Spans) -> None:
    for path in ("/v1/models", "/metrics", "/v1/completions", "/nowhere"):
        spans.client.get(path)
    spans.client.post("/tokenize", {"prompt": "x"})
    assert spans.client.complete([97], max_tokens=1).status == 200
    spans.take()  # of the last one only


def test_failures(spans: Spans) -> None:
    assert spans.client.complete([97], max_tokens=-1).status == 400
    (span,) = spans.take()
    assert attributes_of(span)["error.type"] == "400" and span.status.is_unset
    assert spans.client.complete([97], model=SECRET).status == 404
    (span,) = spans.take()
    assert span.name == "text_completion" and SECRET not in str(attributes_of(span))
    body = {"prompt": [97], "max_tokens": 4000, "stream": True}
    with spans.client.open_raw("/v1/completions", body) as sock:
        read_until(sock, b'"text":')
    (span,) = spans.take()
    assert attributes_of(span)["error.type"] == "abort"


def test_the_parent_of_the_client(spans: Spans) -> None:
    def ask(value: str) -> None:
        answer = spans.client.post("/v1/completions", {"prompt": [97], "max_tokens": 1},
                                   headers={"traceparent": value, "tracestate": "a=b"})
        assert answer.status == 200

    ask(f"00-{TRACE}-{PARENT}-01")
    (span,) = spans.take()
    assert span.parent is not None and span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT and span.parent.is_remote
    ask("nonsense")
    (span,) = spans.take()
    assert span.parent is None
    ask(f"00-{TRACE}-{PARENT}-00")  # the client does not sample: nor do we
    ask(f"00-{TRACE}-{PARENT}-01")
    spans.take()


def test_a_span_that_cannot_be_made_hurts_nobody(spans: Spans,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the exporter")

    monkeypatch.setattr(tracing, "span_attributes", fail)
    assert spans.client.complete([97], max_tokens=1).status == 200
    monkeypatch.undo()
    assert spans.client.complete([97], max_tokens=1).status == 200
    spans.take()


class Collector:
    """A collector on a real socket, which keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["content-type"] == "application/x-protobuf"
                data = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(data))
                collector.paths.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize("path", ["", "/v1/traces", "/custom"])
def test_a_real_collector(path: str) -> None:
    """What waits is sent when the server ends."""
    collector = Collector()
    try:
        tracer = open_tracing(collector.url + path)
        with serving(fake_async_llm(), tracer=tracer) as client:
            for length in (1, 2, 3):
                assert client.complete([97] * length, max_tokens=2).status == 200
    finally:
        collector.close()
    assert set(collector.paths) == {path or "/v1/traces"}
    resources = [r for request in collector.requests for r in request.resource_spans]
    found = [s for r in resources for scope in r.scope_spans for s in scope.spans]
    assert [s.name for s in found] == ["text_completion fake-model"] * 3
    values = [{a.key: a.value for a in s.attributes} for s in found]
    assert sorted(v["gen_ai.usage.input_tokens"].int_value for v in values) == [1, 2, 3]
    names = {a.key: a.value.string_value for a in resources[0].resource.attributes}
    assert names["service.name"] == "octavo"


def test_a_collector_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # nobody listens behind it
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(tracing, "_CLOSE_TIMEOUT_S", 0.1)
        with serving(fake_async_llm(), tracer=open_tracing(url)) as client:
            for _ in range(3):
                assert client.complete([97], max_tokens=2).status == 200


@pytest.mark.parametrize("url", ["", "localhost:4318", "grpc://localhost:4317", "http://",
                                 "http://[::1", "http://h:99999"])
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint is"):
        open_tracing(url)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch,
                           capsys: pytest.CaptureFixture[str]) -> None:
    for name in list(sys.modules):
        if name.startswith("opentelemetry.exporter"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    assert main(["serve", "--otlp-traces-endpoint", "http://localhost:4318"]) == 1
    assert "pip install 'octavo[otel]'" in capsys.readouterr().err


def test_the_filter_of_complaints() -> None:
    """A collector that is down is told of once a minute."""
    seldom = tracing._SeldomFilter()
    assert [seldom.filter(None) for _ in range(3)] == [True, False, False]  # type: ignore[arg-type]


def test_numbers_that_no_attribute_holds() -> None:
    record = RequestRecord("r", "POST", "/v1/completions")
    record.params = SamplingParams(seed=2**64 - 1, top_k=5)
    found = tracing.span_attributes("chat", record)
    assert "gen_ai.request.seed" not in found and found["gen_ai.request.top_k"] == 5
