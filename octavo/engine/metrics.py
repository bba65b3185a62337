"""Counters and histograms of the front end: what is observed where requests come and go.

Observing is a few list operations; metrics_export.py reads the numbers at a scrape. Must not know
HTTP, nor what the metrics are called.
"""

import bisect
import dataclasses
from collections import Counter
from collections.abc import Sequence

from octavo.core.messages import SchedulerStats

# Those of vLLM, with finer ones below: a small model takes a millisecond a token.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
           10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
          2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (0.005, 0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
              30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 30.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N = (1, 2, 5, 10, 20)
# those of samples, the most telling first
REASONS = ("error", "abort", "length", "stop")


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
    """What a finished user request adds. Durations in seconds; None: that phase never came.

    num_generation_tokens: of all samples; max_generation_tokens: of the longest one.
    num_cached_tokens: prompt tokens found in the prefix cache; None: there was no first token.
    """

    reasons: list[str]  # one a sample
    num_prompt_tokens: int
    num_generation_tokens: int
    max_generation_tokens: int
    num_cached_tokens: int | None
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
        self.prompt_tokens_cached = 0
        self.prompt_tokens_given_up = 0  # of requests that ended before their first token
        self.generation_tokens = 0
        self.admission_rejections = 0
        self.engine_restarts = 0
        self.finished: Counter[str] = Counter()
        self.carried: Counter[str] = Counter()  # SchedulerStats' counters of engines that died
        self.time_to_first_token = Histogram(_TTFT_S)
        self.inter_token_latency = Histogram(_ITL_S)
        self.time_per_output_token = Histogram(_ITL_S)
        self.e2e = Histogram(_REQUEST_S)
        self.queue = Histogram(_REQUEST_S)
        self.prefill = Histogram(_REQUEST_S)
        self.decode = Histogram(_REQUEST_S)
        self.inference = Histogram(_REQUEST_S)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)
        self.request_max_generation_tokens = Histogram(_TOKENS)
        self.request_computed_tokens = Histogram(_TOKENS)
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        self.step_duration = Histogram(_STEP_S)
        self.params_n = Histogram(_N)
        self.params_max_tokens = Histogram(_TOKENS)
        self._last_step = 0

    def observe_first_token(self, seconds: float, num_prompt_tokens: int,
                            num_cached_tokens: int) -> None:
        """seconds: since the request came. The prompt is computed now, so it counts now."""
        self.time_to_first_token.observe(seconds)
        self.prompt_tokens += num_prompt_tokens
        self.prompt_tokens_cached += num_cached_tokens

    def observe_inter_token(self, seconds: float) -> None:
        self.inter_token_latency.observe(seconds)

    def observe_step(self, num_generated: int) -> None:
        self.generation_tokens += num_generated

    def observe_stats(self, stats: SchedulerStats | None) -> None:
        """What came with news; a step already seen counts once."""
        if stats is not None and stats.num_steps != self._last_step:
            self._last_step = stats.num_steps
            self.iteration_tokens.observe(stats.last_step_tokens)
            self.step_duration.observe(stats.step_time_s)

    def engine_restarted(self, last: SchedulerStats) -> None:
        """An engine died, and `last` is all it told: its counters go on from there."""
        self.engine_restarts += 1
        self._last_step = 0
        for name in last.__struct_fields__:
            self.carried[name] += getattr(last, name)

    def observe_finished(self, request: FinishedRequest) -> None:
        # one request counts once: under what most wants attention among its samples
        self.finished[min(request.reasons, key=REASONS.index)] += 1
        self.e2e.observe(request.e2e_s)
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(request.num_generation_tokens)
        self.request_max_generation_tokens.observe(request.max_generation_tokens)
        self.params_n.observe(request.n)
        self.params_max_tokens.observe(request.max_tokens)
        if request.num_cached_tokens is not None:
            self.request_computed_tokens.observe(
                request.num_prompt_tokens - request.num_cached_tokens)
        else:  # so that the total is the histogram's sum when all have ended
            self.prompt_tokens += request.num_prompt_tokens
            self.prompt_tokens_given_up += request.num_prompt_tokens
        if request.queued_s is not None:
            self.queue.observe(request.queued_s)
        if request.prefill_s is not None:
            self.prefill.observe(request.prefill_s)
        if request.decode_s is not None:
            self.decode.observe(request.decode_s)
            self.inference.observe(request.decode_s + (request.prefill_s or 0.0))
            if request.max_generation_tokens > 1:
                self.time_per_output_token.observe(
                    request.decode_s / (request.max_generation_tokens - 1))
