"""The metrics by name: one table, and the Prometheus collector that reads it at each scrape.

Names are vLLM's where it has the metric, under a prefix: dashboards port by a prefix. Only metrics
of the engine; those of HTTP are the server's (server/http_metrics.py).
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from octavo import __version__
from octavo.core.messages import SchedulerStats
from octavo.engine.metrics import REASONS, FrontEndMetrics, Histogram
from octavo.errors import ConfigError

DEFAULT_PREFIX = "octavo"
_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
# one engine a server: vLLM's label for one of several
_ENGINE = "0"
_LABELS = ("model_name", "engine")

# name, meaning, the field of SchedulerStats: counts of the engine process
_ENGINE_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.",
     "prefix_cache_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
    ("num_preemptions", "Requests that lost their KV blocks to others and start again later.",
     "num_preemptions"),
    ("engine_steps", "Steps of the engine.", "num_steps"),
    ("steps_scheduled_ahead", "Steps prepared while the step before ran.",
     "num_steps_scheduled_ahead"),
    ("chunked_prefills", "Requests whose prompt took more than one step.",
     "num_chunked_prefills"),
    ("jump_forward_tokens", "Output tokens a grammar forced, taken without a step each.",
     "num_jump_forward_tokens"),
    ("merged_attention_rows", "Token rows whose attention read KV shared with others once.",
     "num_merged_rows"),
    ("kv_copies_on_write", "KV blocks copied on write.", "num_copies_on_write"),
)
# name, meaning, the attribute of FrontEndMetrics
_COUNTERS = (
    ("prompt_tokens", "Prompt tokens of requests with a first token, or over; cached ones too.",
     "prompt_tokens"),
    ("prompt_tokens_cached", "Of the prompt tokens, those whose KV came from the prefix cache.",
     "prompt_tokens_cached"),
    ("generation_tokens", "Tokens generated.", "generation_tokens"),
    ("engine_restarts", "Engines started again after one died.", "engine_restarts"),
)
_HISTOGRAMS = (
    ("time_to_first_token_seconds", "From arrival to the first token.", "time_to_first_token"),
    ("inter_token_latency_seconds", "Between one delivery of tokens of a sample and the next.",
     "inter_token_latency"),
    ("time_per_output_token_seconds",
     "inter_token_latency_seconds under its older name, for older dashboards.",
     "inter_token_latency"),
    ("request_time_per_output_token_seconds",
     "Mean time between two tokens of a request; of those with more than one.",
     "time_per_output_token"),
    ("e2e_request_latency_seconds", "From arrival to the end.", "e2e"),
    ("request_queue_time_seconds", "From arrival until first scheduled.", "queue"),
    ("request_prefill_time_seconds", "From first scheduled to the first token.", "prefill"),
    ("request_decode_time_seconds", "From the first token to the last.", "decode"),
    ("request_inference_time_seconds", "From first scheduled to the last token.", "inference"),
    ("request_prompt_tokens", "Prompt tokens of a request.", "request_prompt_tokens"),
    ("request_generation_tokens", "Tokens generated for a request, all samples together.",
     "request_generation_tokens"),
    ("request_max_num_generation_tokens", "Tokens of a request's longest sample.",
     "request_max_generation_tokens"),
    ("request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not cached.",
     "request_computed_tokens"),
    ("request_params_n", "n of a request.", "params_n"),
    ("request_params_max_tokens", "max_tokens of a request; what fits where it gave none.",
     "params_max_tokens"),
    ("iteration_tokens_total", "Tokens computed in a step.", "iteration_tokens"),
    ("step_duration_seconds", "How long a step took.", "step_duration"),
)


@dataclasses.dataclass(slots=True, frozen=True)
class EngineFacts:
    """What labels say of an engine. cache_config: labels of cache_config_info."""

    model_name: str
    backend: str = ""
    cache_config: Mapping[str, str] = dataclasses.field(default_factory=dict)


def check_prefix(prefix: str) -> None:
    """Raises ConfigError."""
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigError(f"--metrics-prefix is {prefix[:80]!r}: give letters, digits and "
                          "underscores, such as octavo or vllm", param="metrics_prefix")


class EngineCollector(Collector):
    """Reads FrontEndMetrics and the newest SchedulerStats at each scrape."""

    def __init__(self, metrics: FrontEndMetrics, stats: Callable[[], SchedulerStats],
                 facts: EngineFacts, *, prefix: str = DEFAULT_PREFIX,
                 is_ready: Callable[[], bool] = lambda: True) -> None:
        """is_ready: whether requests are taken now."""
        self._metrics = metrics
        self._stats = stats
        self._facts = facts
        self._prefix = prefix
        self._is_ready = is_ready

    def collect(self) -> Iterable[Metric]:
        m, s = self._metrics, self._stats()
        yield from self._gauges(s)
        for name, text, field in _ENGINE_COUNTERS:
            yield self._counter(name, text, getattr(s, field) + m.carried[field])
        for name, text, attribute in _COUNTERS:
            yield self._counter(name, text, getattr(m, attribute))
        yield self._counters(
            "prompt_tokens_by_source", "Prompt tokens by where their KV came from, of requests "
            "that have their first token.", "source",
            {"local_compute": (m.prompt_tokens - m.prompt_tokens_cached
                               - m.prompt_tokens_given_up),
             "local_cache_hit": m.prompt_tokens_cached})
        yield self._counters(
            "request_success", "Finished requests, failed ones too; one of several samples counts "
            "under the first of error, abort, length, stop.", "finished_reason",
            {reason: m.finished[reason] for reason in reversed(REASONS)})
        yield self._counters(
            "admission_rejections", "Requests refused with status 429.", "reason",
            {"max_num_waiting": m.admission_rejections})
        for name, text, attribute in _HISTOGRAMS:
            yield self._histogram(name, text, getattr(m, attribute))
        facts = self._facts
        yield self._info("cache_config_info", "The KV cache.",
                         {"engine": _ENGINE, **facts.cache_config})
        yield self._info("build_info", "What serves.", {
            "model_name": facts.model_name, "version": __version__, "backend": facts.backend})

    def _gauges(self, s: SchedulerStats) -> Iterable[Metric]:
        used = s.num_blocks - s.num_free_blocks
        usage = used / s.num_blocks if s.num_blocks else 0.0
        for name, text, value in (
            ("num_requests_running", "Sequences in the running batch.", s.num_running),
            ("num_requests_waiting", "Sequences waiting to run.", s.num_waiting),
            ("kv_cache_usage_perc", "Share of the KV blocks that requests hold; 1 is all.",
             usage),
            ("gpu_cache_usage_perc",
             "kv_cache_usage_perc under its older name, for older dashboards.", usage),
            ("kv_cached_blocks", "KV blocks in the prefix cache, held by requests or not.",
             s.num_cached_blocks),
            ("kv_live_tokens", "Tokens in the KV of running requests, shared ones once.",
             s.live_tokens),
            ("kv_allocated_slots", "Slots of the KV blocks that running requests hold.",
             s.allocated_slots),
            ("engine_ready", "1 while requests are taken, 0 while the engine loads or is gone.",
             float(self._is_ready())),
        ):
            family = GaugeMetricFamily(self._name(name), text, labels=_LABELS)
            family.add_metric(self._label_values, value)
            yield family

    @property
    def _label_values(self) -> Sequence[str]:
        return (self._facts.model_name, _ENGINE)

    def _name(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(self._name(name), text, labels=_LABELS)
        family.add_metric(self._label_values, value)
        return family

    def _counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(self._name(name), text, labels=(*_LABELS, label))
        for word, value in values.items():
            family.add_metric((*self._label_values, word), value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(self._name(name), text, labels=_LABELS)
        family.add_metric(self._label_values, buckets=histogram.buckets(),
                          sum_value=histogram.sum)
        return family

    def _info(self, name: str, text: str, labels: Mapping[str, str]) -> Metric:
        """A gauge, as vLLM has it: its value is 1, its labels are the facts."""
        family = GaugeMetricFamily(self._name(name), text, labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family


def make_registry(collector: Collector) -> CollectorRegistry:
    """A registry of its own, so that two engines in a process never collide."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
