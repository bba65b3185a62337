"""The log: one JSON object a line where asked for, true of each request, and without secrets."""

import json
import logging
import re
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.core.messages import SchedulerStats
from octavo.engine.metrics import FrontEndMetrics
from octavo.engine.stats_log import StatsLog
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient, read_until
from tests.server.process import ServerProcess

KEY = "sk-correct-horse-battery"
SECRET = "the-treasure-is-under-the-oak"
TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ALWAYS = {"ts", "level", "logger", "process", "message"}


def lines_of(server: ServerProcess) -> list[dict[str, Any]]:
    """Each line of the log, its form checked."""
    found = [json.loads(line) for line in server.stderr.splitlines()]
    for line in found:
        assert set(line) >= ALWAYS and TS.fullmatch(line["ts"])
        assert line["level"] in ("debug", "info", "warning", "error")
    return found


def _client(server: ServerProcess) -> HttpClient:
    """Waits until it is ready, which JSON logs say instead of a banner."""
    wait_for(lambda: any("url" in line for line in lines_of(server)))
    (line,) = [line for line in lines_of(server) if "url" in line]
    assert server.stdout == "" and line["model"] == "SmolLM2-135M-Instruct"
    return HttpClient("127.0.0.1", int(line["url"].rpartition(":")[2]))


def _ask(client: HttpClient, headers: dict[str, str]) -> None:
    """Good and bad requests, with a secret in every place that a client can fill."""
    def post(path: str, body: Any, **more: str) -> int:
        return client.post(path, body, headers=headers | more).status

    assert post("/v1/completions", {"prompt": SECRET, "max_tokens": 4, "ignore_eos": True},
                **{"x-request-id": "one"}) == 200
    messages = [{"role": "user", "content": SECRET}]
    answer = client.post("/v1/chat/completions", {
        "messages": messages, "max_tokens": 6, "stream": True, "ignore_eos": True, "n": 2,
        "user": SECRET, "stop": [SECRET]}, headers=headers | {"x-request-id": "two"})
    assert answer.is_done
    assert post("/v1/chat/completions", {"messages": messages, "temperature": SECRET}) == 400
    assert post("/v1/completions", '{"prompt": "' + SECRET) == 400
    assert post("/v1/completions", {"prompt": SECRET, "logit_bias": {SECRET: 1}}) == 400
    assert post("/v1/completions", {"prompt": SECRET, "model": SECRET}) == 404
    assert post("/v1/completions?key=" + SECRET, {"prompt": SECRET, "max_tokens": 1}) == 200
    assert post("/v1/messages", {"messages": messages, "max_tokens": 2}) == 200
    assert post("/v1/completions", {"prompt": SECRET},
                authorization=f"Bearer {SECRET}") == 401
    body = {"prompt": SECRET, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    data = json.dumps(body).encode()
    with client.open_raw("/health", None) as sock:
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
                     "x-request-id: left\r\ncontent-type: application/json\r\n"
                     f"content-length: {len(data)}\r\n\r\n".encode() + data)
        read_until(sock, b'"text":')


def test_json_lines_tell_of_every_request_and_of_no_secret(model_path: Any) -> None:
    with ServerProcess(str(model_path), "--kv-cache-memory-bytes", "64m", "--log-format", "json",
                       "--log-level", "debug", "--api-key", KEY,
                       "--log-interval", "0.2") as server:
        client = _client(server)
        _ask(client, {"authorization": f"Bearer {KEY}"})

        def by_id(name: str) -> dict[str, Any]:
            return next((x for x in lines_of(server) if x.get("request_id") == name), {})

        wait_for(lambda: bool(by_id("left")))
        one, two, left = by_id("one"), by_id("two"), by_id("left")
        assert one["route"] == one["path"] == "/v1/completions" and one["method"] == "POST"
        assert (one["status"], one["generation_tokens"], one["finish_reason"]) == (200, 4, "length")
        assert 0 < one["ttft_ms"] <= one["duration_ms"] and one["prompt_tokens"] > 5
        assert one["model"] == "SmolLM2-135M-Instruct"
        assert two["route"] == "/v1/chat/completions" and two["generation_tokens"] == 12
        assert left["status"] == 200 and left["finish_reason"] == "abort"
        statuses = [x["status"] for x in lines_of(server) if "status" in x]
        assert sorted(statuses) == [200, 200, 200, 200, 200, 400, 400, 400, 401, 404]
        wait_for(lambda: any(x["logger"] == "octavo.stats" for x in lines_of(server)))
        stats = next(x for x in lines_of(server) if x["logger"] == "octavo.stats")
        assert stats["generation_tokens_per_s"] > 0 or stats["prompt_tokens_per_s"] > 0
        server.engine.kill()  # what is said of it has the same form
        wait_for(lambda: any("started again" in x["message"] for x in lines_of(server)))
        assert SECRET not in server.stderr and KEY not in server.stderr


def test_an_error_at_the_start_is_a_line_too() -> None:
    with ServerProcess("/nowhere/none.gguf", "--log-format", "json") as server:
        assert server.wait() == 1
        (line,) = lines_of(server)
        assert line["level"] == "error" and "/nowhere/none.gguf" in line["message"]


def test_text_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")
    section = ServerSection(log_interval_s=0.02)
    with serving(fake_async_llm(), section, log_requests=True) as client:
        client.complete([97] * 20, max_tokens=3)
        client.get("/v1/models")
        wait_for(lambda: sum("tokens/s" in r.message for r in caplog.records) >= 2)
    told = [r.message for r in caplog.records if r.name == "octavo.server"]
    completion = next(line for line in told if "/v1/completions" in line)
    assert re.fullmatch(
        r"POST /v1/completions 200 \d+\.\d{3} s \w{32} prompt 20 cached 0 generated 3 "
        r"ttft \d+\.\d{3} s finish length", completion)
    assert any(re.fullmatch(r"GET /v1/models 200 \d+\.\d{3} s \w{32}", line) for line in told)


def test_statistics_are_told_while_there_is_traffic() -> None:
    metrics = FrontEndMetrics()
    log = StatsLog(metrics, 0.0)
    assert log.line(SchedulerStats(num_blocks=100, num_free_blocks=100), 10.0) is None
    metrics.prompt_tokens, metrics.generation_tokens = 50, 20
    busy = SchedulerStats(num_running=2, num_waiting=1, num_blocks=100, num_free_blocks=75,
                          prefix_cache_queries=40, prefix_cache_hits=10)
    line = log.line(busy, 20.0)
    assert line is not None
    assert line[0] == ("prompt 5.0 tokens/s, generation 2.0 tokens/s, running 2, waiting 1, "
                       "KV cache 25.0 %, prefix cache hits 25.0 %")
    assert line[1]["kv_cache_usage"] == 0.25 and line[1]["prefix_cache_hit_rate"] == 0.25
    idle = SchedulerStats(num_blocks=100, num_free_blocks=100, prefix_cache_queries=40,
                          prefix_cache_hits=10)
    line = log.line(idle, 30.0)
    assert line is not None and "running 0" in line[0] and "hits -" in line[0]
    assert log.line(idle, 40.0) is None
    metrics.engine_restarted(idle)  # counters of the next engine begin at 0
    assert log.line(SchedulerStats(), 50.0) is None
