"""Counters and histograms of the front end, and the Prometheus collector that reads them.

Observing is a few list operations; prometheus_client sees the numbers only at a scrape. Names are
vLLM's under the prefix "octavo:". Must not know HTTP.
"""

import bisect
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from octavo.core.messages import SchedulerStats

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
           10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
          10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
              120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N = (1, 2, 5, 10, 20)
# those of samples, the most telling first
_REASONS = ("error", "abort", "length", "stop")


class Histogram:
    """Counts by bucket, cumulative only when read."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), ending with +Inf."""
        total, found = 0, []
        for bound, count in zip((*map(float, self._bounds), float("inf")), self._counts):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found

    @property
    def sum(self) -> float:
        return self._sum


@dataclasses.dataclass(slots=True, frozen=True)
class FinishedRequest:
    """What a finished user request adds. Durations in seconds; None: that phase never came."""

    reasons: list[str]  # one a sample
    num_prompt_tokens: int
    num_generation_tokens: int
    n: int
    max_tokens: int
    e2e_s: float
    queued_s: float | None
    prefill_s: float | None
    decode_s: float | None


class FrontEndMetrics:
    """Everything observed where requests come and go."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.engine_restarts = 0
        self.finished: Counter[str] = Counter()
        self.time_to_first_token = Histogram(_TTFT_S)
        self.inter_token_latency = Histogram(_ITL_S)
        self.e2e = Histogram(_REQUEST_S)
        self.queue = Histogram(_REQUEST_S)
        self.prefill = Histogram(_REQUEST_S)
        self.decode = Histogram(_REQUEST_S)
        self.inference = Histogram(_REQUEST_S)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        self._last_step = 0
        self.params_n = Histogram(_N)
        self.params_max_tokens = Histogram(_TOKENS)

    def observe_first_token(self, seconds: float) -> None:
        self.time_to_first_token.observe(seconds)

    def observe_inter_token(self, seconds: float) -> None:
        self.inter_token_latency.observe(seconds)

    def observe_step(self, num_generated: int) -> None:
        self.generation_tokens += num_generated

    def observe_stats(self, stats: SchedulerStats | None) -> None:
        """What came with news; a step already seen counts once."""
        if stats is not None and stats.num_steps != self._last_step:
            self._last_step = stats.num_steps
            self.iteration_tokens.observe(stats.last_step_tokens)

    def observe_finished(self, request: FinishedRequest) -> None:
        # one request counts once: under what most wants attention among its samples
        self.finished[min(request.reasons, key=_REASONS.index)] += 1
        self.prompt_tokens += request.num_prompt_tokens
        self.e2e.observe(request.e2e_s)
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(request.num_generation_tokens)
        self.params_n.observe(request.n)
        self.params_max_tokens.observe(request.max_tokens)
        if request.queued_s is not None:
            self.queue.observe(request.queued_s)
        if request.prefill_s is not None:
            self.prefill.observe(request.prefill_s)
        if request.decode_s is not None:
            self.decode.observe(request.decode_s)
            self.inference.observe(request.decode_s + (request.prefill_s or 0.0))


class EngineCollector(Collector):
    """Reads FrontEndMetrics and the newest SchedulerStats at each scrape."""

    def __init__(self, metrics: FrontEndMetrics, stats: Callable[[], SchedulerStats], *,
                 model_name: str, cache_config: dict[str, str]) -> None:
        self._metrics = metrics
        self._stats = stats
        self._labels = [model_name]
        self._cache_config = cache_config

    def collect(self) -> Iterable[Metric]:
        m, s = self._metrics, self._stats()
        used = s.num_blocks - s.num_free_blocks
        yield self._gauge("num_requests_running", "Requests running.", s.num_running)
        yield self._gauge("num_requests_waiting", "Requests waiting.", s.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Used KV blocks; 1 is all of them.",
                          used / s.num_blocks if s.num_blocks else 0.0)
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of finished requests.", m.prompt_tokens),
            ("generation_tokens", "Tokens generated.", m.generation_tokens),
            ("num_preemptions", "Preemptions.", s.num_preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
             s.prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.",
             s.prefix_cache_hits),
            ("engine_steps", "Steps of the engine.", s.num_steps),
            ("steps_scheduled_ahead", "Steps prepared while the step before ran.",
             s.num_steps_scheduled_ahead),
            ("engine_restarts", "Engines started again after one died.", m.engine_restarts),
            ("jump_forward_tokens", "Output tokens a grammar forced, taken without a step each.",
             s.num_jump_forward_tokens),
            ("merged_attention_rows", "Token rows whose attention read KV shared with others once.",
             s.num_merged_rows),
            ("kv_copies_on_write", "KV blocks copied on write.", s.num_copies_on_write),
        ):
            family = CounterMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            family.add_metric(self._labels, value)
            yield family
        success = CounterMetricFamily("octavo:request_success", "Finished requests.",
                                      labels=["model_name", "finished_reason"])
        for reason in reversed(_REASONS):
            success.add_metric([*self._labels, reason], m.finished[reason])
        yield success
        yield from self._histograms()
        info = GaugeMetricFamily("octavo:cache_config_info", "The KV cache.",
                                 labels=list(self._cache_config))
        info.add_metric(list(self._cache_config.values()), 1)
        yield info

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"octavo:{name}", text, labels=["model_name"])
        family.add_metric(self._labels, value)
        return family

    def _histograms(self) -> Iterable[Metric]:
        m = self._metrics
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Arrival to first token.", m.time_to_first_token),
            ("inter_token_latency_seconds", "Between two tokens.", m.inter_token_latency),
            ("e2e_request_latency_seconds", "Arrival to the end.", m.e2e),
            ("request_queue_time_seconds", "Waiting.", m.queue),
            ("request_prefill_time_seconds", "First scheduled to first token.", m.prefill),
            ("request_decode_time_seconds", "First to last token.", m.decode),
            ("request_inference_time_seconds", "First scheduled to last token.", m.inference),
            ("request_prompt_tokens", "Prompt tokens of a request.", m.request_prompt_tokens),
            ("request_generation_tokens", "Tokens generated for a request.",
             m.request_generation_tokens),
            ("iteration_tokens_total", "Tokens computed in a step.", m.iteration_tokens),
            ("request_params_n", "n of a request.", m.params_n),
            ("request_params_max_tokens", "max_tokens of a request.", m.params_max_tokens),
        ):
            family = HistogramMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            family.add_metric(self._labels, buckets=histogram.buckets(),
                              sum_value=histogram.sum)
            yield family


def make_registry(collector: EngineCollector) -> CollectorRegistry:
    """A registry of its own, so that two engines in a process never collide."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
