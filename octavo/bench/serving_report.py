"""Serving metrics of a load run, with the names of vLLM's report: TTFT, TPOT, ITL, E2EL, goodput.

Pure functions of records. All times in the report are milliseconds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.bench.load import LoadResult, RequestRecord
from octavo.bench.stats import percentile, summarize
from octavo.errors import ConfigError

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
SLO_NAMES = ("ttft", "tpot", "e2el")
_WIDTH = 62


@dataclasses.dataclass(slots=True, frozen=True)
class LatencyStats:
    """One metric over all requests, in milliseconds; NaN where nothing was measured."""

    mean: float
    median: float
    std: float
    percentiles: dict[str, float]  # by the percentage as text: "99", "99.9"


@dataclasses.dataclass(slots=True, frozen=True)
class ServingReport:
    """The figures of one run. Throughputs a second; goodput None without SLOs.

    failed: requests with an error; their errors, counted by text, are in `errors`.
    client_cpu_s: of the load generator. server_cpu_s: of the server, where it was watched.
    """

    completed: int
    failed: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    total_cached_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    peak_output_tokens_per_s: float
    peak_concurrency: int
    latencies: dict[str, LatencyStats]
    errors: dict[str, int]
    client_cpu_s: float
    server_cpu_s: float | None = None


def parse_goodput(items: Sequence[str]) -> dict[str, float]:
    """["ttft:500", "tpot:50"] as bounds in milliseconds. Raises ConfigError."""
    slos: dict[str, float] = {}
    for item in items:
        name, _, text = item.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in SLO_NAMES or not value > 0:
            raise ConfigError(f"goodput is {item!r}: give NAME:MILLISECONDS with one of "
                              f"{', '.join(SLO_NAMES)}, such as ttft:500", param="goodput")
        slos[name] = value
    return slos


def serving_report(result: LoadResult, *, slos: Mapping[str, float] | None = None,
                   percentiles: Sequence[float] = (99,),
                   server_cpu_s: float | None = None) -> ServingReport:
    """The report of a run. slos: as parse_goodput gives them."""
    good = [record for record in result.records if record.succeeded]
    errors: dict[str, int] = {}
    for record in result.records:
        if record.error is not None:
            errors[record.error] = errors.get(record.error, 0) + 1
    duration = max(result.duration_s, 1e-9)
    output_tokens = sum(record.num_output_tokens for record in good)
    input_tokens = sum(record.num_prompt_tokens for record in good)
    goodput = None
    if slos:
        goodput = sum(meets_slos(record, slos) for record in good) / duration
    samples = {
        "ttft": [record.ttft_s for record in good],
        "tpot": [tpot for record in good if (tpot := record.tpot_s) is not None],
        "itl": [gap for record in good for gap in record.itl_s],
        "e2el": [record.latency_s for record in good],
    }
    return ServingReport(
        completed=len(good), failed=len(result.records) - len(good), duration_s=result.duration_s,
        total_input_tokens=input_tokens, total_output_tokens=output_tokens,
        total_cached_tokens=sum(record.num_cached_tokens for record in good),
        request_throughput=len(good) / duration, request_goodput=goodput,
        output_throughput=output_tokens / duration,
        total_token_throughput=(input_tokens + output_tokens) / duration,
        peak_output_tokens_per_s=peak_rate(good), peak_concurrency=result.peak_concurrency,
        latencies={name: _stats(values, percentiles) for name, values in samples.items()},
        errors=errors, client_cpu_s=result.cpu_s, server_cpu_s=server_cpu_s,
    )


def meets_slos(record: RequestRecord, slos: Mapping[str, float]) -> bool:
    """Whether a successful request kept every bound. Without a TPOT of its own (one token), it
    keeps any."""
    values = {"ttft": record.ttft_s, "tpot": record.tpot_s or 0.0, "e2el": record.latency_s}
    return all(values[name] * 1000 <= bound for name, bound in slos.items())


def peak_rate(records: Sequence[RequestRecord]) -> float:
    """Most pieces of answers that came within one second, seconds counted from the first start."""
    if not records:
        return 0.0
    start = min(record.start_s for record in records)
    by_second: dict[int, int] = {}
    for record in records:
        moment = record.start_s + record.ttft_s - start
        for gap in (0.0, *record.itl_s):
            moment += gap
            by_second[int(moment)] = by_second.get(int(moment), 0) + 1
    return float(max(by_second.values()))


def _stats(seconds: Sequence[float], percentiles: Sequence[float]) -> LatencyStats:
    ms = [value * 1000 for value in seconds]
    found = summarize(ms)
    return LatencyStats(found.mean, found.median, found.std,
                        {f"{p:g}": percentile(ms, p) for p in percentiles})


def report_json(report: ServingReport) -> dict[str, Any]:
    """The report under the field names of vLLM's result files; figures that do not exist are
    null."""
    found: dict[str, Any] = {
        "duration": report.duration_s, "completed": report.completed, "failed": report.failed,
        "total_input_tokens": report.total_input_tokens,
        "total_output_tokens": report.total_output_tokens,
        "total_cached_tokens": report.total_cached_tokens,
        "request_throughput": report.request_throughput,
        "request_goodput": report.request_goodput,
        "output_throughput": report.output_throughput,
        "total_token_throughput": report.total_token_throughput,
        "max_output_tokens_per_s": report.peak_output_tokens_per_s,
        "max_concurrent_requests": report.peak_concurrency,
        "client_cpu_s": report.client_cpu_s, "server_cpu_s": report.server_cpu_s,
        "errors": report.errors,
    }
    for name, stats in report.latencies.items():
        found[f"mean_{name}_ms"] = stats.mean
        found[f"median_{name}_ms"] = stats.median
        found[f"std_{name}_ms"] = stats.std
        for percent, value in stats.percentiles.items():
            found[f"p{percent}_{name}_ms"] = value
    return {key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in found.items()}


def report_text(report: ServingReport, *, metrics: Sequence[str] = tuple(METRICS)) -> str:
    """The report for people."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]

    def row(name: str, value: object) -> None:
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        lines.append(f"{name + ':':<44}{shown:>{_WIDTH - 44}}")

    row("Successful requests", report.completed)
    row("Failed requests", report.failed)
    row("Benchmark duration (s)", report.duration_s)
    row("Total input tokens", report.total_input_tokens)
    row("Total generated tokens", report.total_output_tokens)
    if report.total_cached_tokens:
        row("Input tokens from the prefix cache", report.total_cached_tokens)
    row("Request throughput (req/s)", report.request_throughput)
    if report.request_goodput is not None:
        row("Request goodput (req/s)", report.request_goodput)
    row("Output token throughput (tok/s)", report.output_throughput)
    row("Peak output token throughput (tok/s)", report.peak_output_tokens_per_s)
    row("Peak concurrent requests", report.peak_concurrency)
    row("Total token throughput (tok/s)", report.total_token_throughput)
    row("CPU time of the load generator (s)", report.client_cpu_s)
    if report.server_cpu_s is not None:
        row("CPU time of the server (s)", report.server_cpu_s)
        row("Output tokens per server CPU-second",
            report.total_output_tokens / max(report.server_cpu_s, 1e-9))
    for name in metrics:
        stats = report.latencies[name]
        lines.append(METRICS[name].center(_WIDTH, "-"))
        label = name.upper()
        row(f"Mean {label} (ms)", stats.mean)
        row(f"Median {label} (ms)", stats.median)
        for percent, value in stats.percentiles.items():
            row(f"P{percent} {label} (ms)", value)
    lines.append("=" * _WIDTH)
    lines += [f"failed {count}x: {error}" for error, count in report.errors.items()]
    return "\n".join(lines)
