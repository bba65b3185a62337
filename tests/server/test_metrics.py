"""The metrics: documented and there, drawn by the dashboard, and true of what clients saw."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo.config import ServerSection
from octavo.engine.metrics_export import check_prefix
from octavo.errors import ConfigError
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import HttpClient, read_until
from tests.server.process import ServerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \| [^|]+ \|$", re.MULTILINE)
# what vLLM's own dashboards ask for
VLLM_QUERIES = [
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc",
    "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "request_success_total", "num_preemptions_total",
    "time_to_first_token_seconds_bucket", "time_per_output_token_seconds_bucket",
    "inter_token_latency_seconds_bucket", "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum",
    "e2e_request_latency_seconds_count", "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
    "request_inference_time_seconds_bucket", "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket", "request_max_num_generation_tokens_bucket",
    "request_params_n_bucket", "request_params_max_tokens_bucket",
    "iteration_tokens_total_bucket", "cache_config_info",
]


class Scrape:
    """One answer of /metrics, read by the official parser."""

    def __init__(self, client: HttpClient, prefix: str = "octavo") -> None:
        answer = client.get("/metrics")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        self._prefix = f"{prefix}:"
        self.families: list[Metric] = list(text_string_to_metric_families(answer.text))
        self.samples = {(s.name.removeprefix(self._prefix), frozenset(s.labels.items())): s.value
                        for f in self.families for s in f.samples}
        assert all(f.name.startswith(self._prefix) for f in self.families)

    def __getitem__(self, name: str) -> float:
        """The sum of a metric over its labels."""
        found = [value for (n, labels), value in self.samples.items() if n == name]
        assert found, name
        return sum(found)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by one label, where they are not 0."""
        found: Counter[str] = Counter()
        for (n, labels), value in self.samples.items():
            if n == name and value:
                found[dict(labels)[label]] += int(value)
        return dict(found)

    def check_form(self) -> None:
        """Histograms are cumulative and complete, nothing is negative."""
        for family in self.families:
            assert all(s.value >= 0 for s in family.samples)
            if family.type == "histogram":
                buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
                assert buckets == sorted(buckets)
                (count,) = [s.value for s in family.samples if s.name.endswith("_count")]
                assert buckets[-1] == count

    def check_behind(self, earlier: "Scrape") -> None:
        """No counter went down."""
        for family in earlier.families:
            if family.type == "counter":
                for s in family.samples:
                    key = s.name.removeprefix(self._prefix), frozenset(s.labels.items())
                    assert self.samples[key] >= s.value, s.name


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as found:
        assert found.complete([97] * 5, max_tokens=2).status == 200
        yield found


def documented() -> dict[str, tuple[str, set[str], str]]:
    """name -> type, labels, meaning: the table of docs/METRICS.md."""
    rows = ROW.findall((DOCS / "METRICS.md").read_text())
    found = {name: (kind, set(labels.split(", ")), meaning)
             for name, kind, labels, meaning in rows}
    assert len(found) == len(rows) > 40
    return found


def test_the_documented_metrics_are_those_that_are_there(client: HttpClient) -> None:
    there = {}
    for family in Scrape(client).families:
        name = family.name.removeprefix("octavo:")
        name += "_total" if family.type == "counter" else ""
        labels = {label for s in family.samples for label in s.labels} - {"le"}
        there[name] = (family.type, labels, family.documentation)
    assert documented() == there


@pytest.mark.parametrize("prefix", ["octavo", "vllm"])
def test_dashboards(prefix: str) -> None:
    """Whatever our dashboard and vLLM's ask for is there, under either prefix."""
    dashboard = json.loads((DOCS / "grafana" / "octavo.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"]
               for target in panel.get("targets", ())]
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert {o["value"] for o in variables["prefix"]["options"]} == {"octavo", "vllm"}
    queries.append(variables["model_name"]["query"]["query"])
    asked = {name for query in queries for name in re.findall(r"\$\{prefix\}:(\w+)", query)}
    assert len(asked) > 30 and all("${prefix}:" in query for query in queries)
    named = set(re.findall(r"\$\{?(\w+)", " ".join(queries))) - {"__rate_interval"}
    assert named <= set(variables)
    with serving(fake_async_llm(server=ServerSection(metrics_prefix=prefix))) as client:
        found = Scrape(client, prefix)
        for name in (*asked, *VLLM_QUERIES):
            assert found[name] >= 0
        assert "octavo" not in {f.name.split(":")[0] for f in found.families} or prefix == "octavo"


@pytest.mark.parametrize("prefix", ["", "1a", "a:b", "a-b", "x" * 65, "a b", "é"])
def test_bad_prefixes(prefix: str) -> None:
    with pytest.raises(ConfigError, match="--metrics-prefix is"):
        check_prefix(prefix)


def test_labels_are_bounded(client: HttpClient) -> None:
    """Whatever a client makes up is one word: other."""
    for path in ("/wp-admin", "/v1/nothing/1", "/v1/models/nobody", "/v1/responses/abc",
                 "/v1/responses/def"):
        client.get(path)
    client.request("PROPFIND", "/wp-admin")
    found = Scrape(client)
    handlers = set(found.by("http_requests_total", "handler"))
    assert handlers == {"other", "/v1/models/{model_id}", "/v1/responses/{response_id}",
                        "/v1/completions", "/metrics", "/ready"}
    assert set(found.by("http_requests_total", "method")) == {"GET", "POST", "other"}


def test_refusals_and_failures_are_counted() -> None:
    engine = fake_async_llm(max_num_seqs=1, max_num_waiting=1)
    with serving(engine) as client:
        engine.executor.run.clear()
        body = {"prompt": [97] * 4, "max_tokens": 3}
        with client.open_raw("/v1/completions", body), client.open_raw("/v1/completions", body):
            wait_for(lambda: engine.llm.num_unfinished_requests == 2)
            assert client.post("/v1/completions", body).status == 429
            assert Scrape(client).by("admission_rejections_total", "reason") == {
                "max_num_waiting": 1}
            engine.executor.run.set()
        wait_for(lambda: engine.llm.num_unfinished_requests == 0)
        client.complete("FAULT-AT-5", max_tokens=20)
        found = Scrape(client)
        assert found.by("request_success_total", "finished_reason")["error"] == 1
        assert found.by("http_requests_total", "status")["429"] == 1
        assert found["engine_ready"] == 0  # the fault ended the engine


class Load:
    """Clients of all kinds at once, and what they saw."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.prompt = self.cached = self.generated = 0
        self.finished: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()

    def ask(self, number: int) -> None:
        """One request; each kind of number has its own form."""
        prompt = [1000 + number % 3] * 40 + [2000 + number] * (10 + number)
        fields: dict[str, Any] = {"max_tokens": 8 + number, "temperature": 0, "ignore_eos": True}
        if number % 4 == 1:
            fields["n"] = 2
        if number % 4 == 2:
            fields["allowed_token_ids"] = fields["stop_token_ids"] = [260]  # ends at once
        if number % 2:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = self._client.complete(prompt, **fields)
        assert answer.status == 200, answer.text
        if number % 2:
            assert answer.is_done
            events = answer.events
            usage = events[-1]["usage"]
            reasons = {c["finish_reason"] for e in events for c in e["choices"]} - {None}
        else:
            usage = answer.json["usage"]
            reasons = {c["finish_reason"] for c in answer.json["choices"]}
        with self._lock:
            self.prompt += usage["prompt_tokens"]
            self.cached += usage["prompt_tokens_details"]["cached_tokens"]
            self.generated += usage["completion_tokens"]
            (reason,) = reasons
            self.finished[reason] += 1
            self.lengths[len(prompt)] += 1


def test_a_scrape_under_load(model_path: Path) -> None:
    """Every documented metric is there at any moment; at the end counters are what clients saw."""
    with ServerProcess(str(model_path), "--kv-cache-memory-bytes", "64m", "--max-num-seqs", "6",
                       "--disable-log-requests", "--metrics-prefix", "vllm") as server:
        server.wait_ready()
        client = server.client
        load = Load(client)
        before = Scrape(client, "vllm")
        seen_running: list[float] = []
        with ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(load.ask, number) for number in range(24)]
            while not all(job.done() for job in jobs):
                now = Scrape(client, "vllm")
                now.check_form()
                now.check_behind(before)
                assert set(documented()) <= {
                    re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in now.samples}
                assert now["num_requests_running"] <= 6 and now["kv_cache_usage_perc"] <= 1
                seen_running.append(now["num_requests_running"])
                before = now
            for job in jobs:
                job.result()
        assert max(seen_running) > 1
        _check_totals(Scrape(client, "vllm"), load)
        _leave_a_stream(client)
        last = Scrape(client, "vllm")
        assert last.by("request_success_total", "finished_reason") == {
            **load.finished, "abort": 1}
        assert last["prompt_tokens_total"] == load.prompt + 9
        assert last["generation_tokens_total"] == last["request_generation_tokens_sum"]
        assert client.complete("x", max_tokens=-1).status == 400
        assert Scrape(client, "vllm").by("http_requests_total", "status")["400"] == 1


def _check_totals(end: Scrape, load: Load) -> None:
    assert end["prompt_tokens_total"] == load.prompt == end["request_prompt_tokens_sum"]
    assert end["generation_tokens_total"] == load.generated
    assert end["request_generation_tokens_sum"] == load.generated
    assert end["prompt_tokens_cached_total"] == load.cached > 0
    assert end["prefix_cache_hits_total"] == load.cached
    assert end["prefix_cache_queries_total"] == load.prompt
    assert end.by("prompt_tokens_by_source_total", "source") == {
        "local_cache_hit": load.cached, "local_compute": load.prompt - load.cached}
    assert end["request_prefill_kv_computed_tokens_sum"] == load.prompt - load.cached
    assert end.by("request_success_total", "finished_reason") == dict(load.finished)
    assert set(load.finished) == {"length", "stop"}
    total = load.finished.total()
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds",
                 "request_queue_time_seconds", "request_prefill_time_seconds",
                 "request_decode_time_seconds", "request_inference_time_seconds",
                 "request_prompt_tokens", "request_generation_tokens", "request_params_n",
                 "request_params_max_tokens", "request_max_num_generation_tokens",
                 "request_prefill_kv_computed_tokens"):
        assert end[f"{name}_count"] == total, name
    # one that stopped at its first token has no time between tokens
    assert end["request_time_per_output_token_seconds_count"] == load.finished["length"]
    assert end["request_params_n_sum"] == total + total / 4
    assert end["request_params_max_tokens_sum"] == sum(8 + number for number in range(24))
    for bound in (50.0, 100.0):
        labels = {"le": str(bound), "model_name": "SmolLM2-135M-Instruct", "engine": "0"}
        assert end.samples["request_prompt_tokens_bucket", frozenset(labels.items())] == sum(
            count for length, count in load.lengths.items() if length <= bound)
    steps = end["engine_steps_total"]
    assert end["iteration_tokens_total_count"] == end["step_duration_seconds_count"] == steps
    assert end["iteration_tokens_total_sum"] >= load.prompt - load.cached
    # waiting, prefill and decode are parts of the whole
    parts = sum(end[f"request_{p}_time_seconds_sum"] for p in ("queue", "prefill", "decode"))
    assert 0 < parts <= end["e2e_request_latency_seconds_sum"] * 1.05
    assert end["num_requests_running"] == end["num_requests_waiting"] == 0
    assert end["kv_cache_usage_perc"] == 0 < end["kv_cached_blocks"]
    assert end["engine_ready"] == 1
    assert set(end.by("process_cpu_seconds_total", "process")) == {"server", "engine"}
    memory = end.by("process_resident_memory_bytes", "process")
    assert all(1e7 < memory[process] < 4e9 for process in ("server", "engine"))
    assert end.by("http_requests_total", "handler")["/v1/completions"] == total


def _leave_a_stream(client: HttpClient) -> None:
    """Reads the beginning of an answer and goes away."""
    body = {"prompt": [3000] * 9, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with client.open_raw("/v1/completions", body) as sock:
        read_until(sock, b'"text":')
    wait_for(lambda: Scrape(client, "vllm").by(
        "request_success_total", "finished_reason").get("abort") == 1)
