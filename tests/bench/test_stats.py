"""The arithmetic of the reports."""

import math
import random

import numpy as np
import pytest

from octavo.bench.load import LoadResult, RequestRecord
from octavo.bench.serving_report import (
    meets_slos,
    parse_goodput,
    peak_rate,
    report_json,
    report_text,
    serving_report,
)
from octavo.bench.stats import median_interval, percentile, ratio_of_medians, summarize
from octavo.errors import ConfigError


def test_summary_is_numpys() -> None:
    rng = random.Random(1)
    for count in (1, 2, 3, 50):
        values = [rng.expovariate(1.0) for _ in range(count)]
        found = summarize(values)
        assert found.mean == pytest.approx(np.mean(values))
        assert found.median == pytest.approx(np.median(values))
        assert found.std == pytest.approx(np.std(values, ddof=1) if count > 1 else 0.0)
        assert (found.minimum, found.maximum) == (min(values), max(values))
        for percent in (0, 1, 25, 50, 99, 99.9, 100):
            assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_nothing_measured_is_nan() -> None:
    assert math.isnan(summarize([]).mean) and math.isnan(percentile([], 99))
    assert math.isnan(ratio_of_medians([], [1.0])) and math.isnan(ratio_of_medians([1.0], [0.0]))
    assert ratio_of_medians([1.0, 9.0, 4.0], [2.0, 1.0]) == pytest.approx(4.0 / 1.5)
    with pytest.raises(ValueError, match="101"):
        percentile([1.0], 101)


def _record(ttft_ms: float, gaps_ms: list[float], *, start_s: float = 0.0) -> RequestRecord:
    gaps = [gap / 1000 for gap in gaps_ms]
    return RequestRecord(start_s=start_s, ttft_s=ttft_ms / 1000, itl_s=gaps,
                         latency_s=ttft_ms / 1000 + sum(gaps), num_prompt_tokens=10,
                         num_output_tokens=len(gaps) + 1)


def test_serving_report() -> None:
    records = [_record(100, [10, 30]), _record(300, [20, 20, 20]), _record(50, []),
               RequestRecord(error="HTTP 500: no")]
    result = LoadResult(records, duration_s=2.0, cpu_s=0.25, peak_concurrency=3)
    report = serving_report(result, slos={"ttft": 200, "tpot": 25}, percentiles=(50, 99))
    assert (report.completed, report.failed) == (3, 1)
    assert (report.total_input_tokens, report.total_output_tokens) == (30, 8)
    assert report.request_throughput == 1.5 and report.output_throughput == 4.0
    assert report.total_token_throughput == 19.0
    assert report.request_goodput == 1.0  # the second is late; the third has no TPOT to miss
    data = report_json(report)
    assert data["mean_ttft_ms"] == pytest.approx(150) and data["median_ttft_ms"] == 100
    assert data["mean_tpot_ms"] == pytest.approx(20)  # one token has none
    assert data["mean_itl_ms"] == pytest.approx(20)
    assert data["p99_e2el_ms"] == pytest.approx(np.percentile([140, 360, 50], 99))
    assert data["p50_itl_ms"] == pytest.approx(20)
    assert data["errors"] == {"HTTP 500: no": 1} and data["client_cpu_s"] == 0.25
    text = report_text(report)
    for part in ("Successful requests:", "Request goodput", "Mean TTFT (ms):", "P99 E2EL (ms):",
                 "failed 1x: HTTP 500: no"):
        assert part in text


def test_a_run_without_success_is_reported() -> None:
    result = LoadResult([RequestRecord(error="gone")], 1.0, 0.0, 1)
    data = report_json(serving_report(result))
    assert data["completed"] == 0 and data["mean_ttft_ms"] is None
    assert data["request_goodput"] is None


def test_peak_rate_counts_pieces_by_second() -> None:
    records = [_record(100, [100, 100, 900]), _record(100, [700], start_s=0.5)]
    # moments: 0.1 0.2 0.3 1.2 and 0.6 1.3
    assert peak_rate(records) == 4.0
    assert peak_rate([]) == 0.0


def test_goodput_bounds() -> None:
    assert parse_goodput(["ttft:500", "tpot:50", "e2el:1e4"]) == {
        "ttft": 500.0, "tpot": 50.0, "e2el": 10000.0}
    record = _record(100, [10, 10])
    assert meets_slos(record, {"ttft": 100.1, "tpot": 10.1, "e2el": 120.1})
    for name, bound in (("ttft", 99), ("tpot", 9.9), ("e2el", 119)):
        assert not meets_slos(record, {name: bound})
    for bad in ("ttft", "ttft:", "itl:5", "ttft:-1", "ttft:x", "tpot:nan", ":3"):
        with pytest.raises(ConfigError, match="NAME:MILLISECONDS"):
            parse_goodput([bad])


def test_interval_of_a_median() -> None:
    samples = [float(i) for i in range(20)]
    random.Random(1).shuffle(samples)
    assert median_interval(samples) == (5.0, 14.0)  # the 6th and the 15th: 95.9 %
    assert median_interval(samples, 0.5) == (7.0, 12.0)
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([3.0, 1.0, 2.0, 9.0, 5.0]) == (1.0, 9.0)  # five cannot give 95 %
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_interval_of_a_median_covers_it() -> None:
    rng = np.random.default_rng(3)
    for count in (6, 11, 20):
        drawn = rng.exponential(size=(2000, count))
        found = np.array([median_interval(list(row)) for row in drawn])
        covered = (found[:, 0] <= np.log(2)) & (np.log(2) <= found[:, 1])
        assert covered.mean() > 0.94
