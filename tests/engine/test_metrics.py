"""Counters of the front end."""

import pytest

from octavo.core.messages import SchedulerStats
from octavo.engine.metrics import FinishedRequest, FrontEndMetrics
from octavo.engine.metrics_export import EngineCollector, EngineFacts


@pytest.mark.parametrize(("reasons", "counted"), [
    (["stop"], "stop"),
    (["stop", "length", "stop"], "length"),
    (["length", "abort"], "abort"),
    (["abort", "stop", "error"], "error"),
])
def test_a_request_counts_once(reasons: list[str], counted: str) -> None:
    metrics = FrontEndMetrics()
    metrics.observe_finished(FinishedRequest(
        reasons=reasons, num_prompt_tokens=3, num_generation_tokens=4, n=len(reasons),
        max_generation_tokens=4, num_cached_tokens=None, max_tokens=4, e2e_s=0.1,
        queued_s=None, prefill_s=None, decode_s=None))
    assert metrics.finished == {counted: 1}
    assert metrics.e2e.count == metrics.request_prompt_tokens.count == 1


def test_prompt_tokens_are_the_sum_of_the_requests() -> None:
    """Also where a client left before the first token."""
    metrics = FrontEndMetrics()
    metrics.observe_first_token(0.1, 5, 2)
    for num_prompt_tokens, num_cached_tokens in ((5, 2), (7, None)):
        metrics.observe_finished(FinishedRequest(
            reasons=["abort"], num_prompt_tokens=num_prompt_tokens, num_generation_tokens=1, n=1,
            max_generation_tokens=1, num_cached_tokens=num_cached_tokens, max_tokens=4, e2e_s=0.1,
            queued_s=None, prefill_s=None, decode_s=None))
    collector = EngineCollector(metrics, SchedulerStats, EngineFacts("m"))
    found = {(s.name.removeprefix("octavo:"), s.labels.get("source")): s.value
             for family in collector.collect() for s in family.samples}
    assert found["prompt_tokens_total", None] == found["request_prompt_tokens_sum", None] == 12
    assert found["prompt_tokens_by_source_total", "local_compute"] == 3
    assert found["prompt_tokens_by_source_total", "local_cache_hit"] == 2


def test_counters_go_on_when_an_engine_is_started_again() -> None:
    metrics = FrontEndMetrics()
    now = SchedulerStats(num_steps=5, prefix_cache_hits=3)
    collector = EngineCollector(metrics, lambda: now, EngineFacts("m"))

    def values() -> dict[str, float]:
        return {s.name: s.value for family in collector.collect() for s in family.samples}

    assert values()["octavo:engine_steps_total"] == 5
    metrics.observe_stats(now)
    metrics.engine_restarted(now)
    now = SchedulerStats(num_steps=5)  # the next engine, as far as the last one came
    metrics.observe_stats(now)
    found = values()
    assert found["octavo:engine_steps_total"] == 10
    assert found["octavo:iteration_tokens_total_count"] == 2
    assert found["octavo:prefix_cache_hits_total"] == 3
    assert found["octavo:engine_restarts_total"] == 1


def test_a_step_counts_once() -> None:
    """News of a step may come in several frames, and between steps."""
    metrics = FrontEndMetrics()
    for stats in (None, SchedulerStats(num_steps=1), SchedulerStats(num_steps=1), None,
                  SchedulerStats(num_steps=2)):
        metrics.observe_stats(stats)
    assert metrics.step_duration.count == metrics.iteration_tokens.count == 2
