"""StatsLog: one line of statistics for the time since the last one, while there is traffic."""

from typing import Any

from octavo.core.messages import SchedulerStats
from octavo.engine.metrics import FrontEndMetrics


class StatsLog:
    """Remembers the counters of its last line. One caller at a time."""

    def __init__(self, metrics: FrontEndMetrics, now: float) -> None:
        """now: any clock, in seconds; that of line()."""
        self._metrics = metrics
        self._last = (0, 0, 0, 0)
        self._last_time = now
        self._was_busy = False

    def line(self, stats: SchedulerStats, now: float) -> tuple[str, dict[str, Any]] | None:
        """The line for people and its fields for programs; None if nothing happened since the last
        call, nor in the interval before it: the first idle interval is told, the rest is not."""
        m = self._metrics
        counts = (m.prompt_tokens, m.generation_tokens,
                  stats.prefix_cache_queries + m.carried["prefix_cache_queries"],
                  stats.prefix_cache_hits + m.carried["prefix_cache_hits"])
        prompt, generated, queries, hits = (
            new - old for new, old in zip(counts, self._last, strict=True))
        seconds = max(now - self._last_time, 1e-9)
        self._last, self._last_time = counts, now
        busy = bool(prompt or generated or stats.num_running or stats.num_waiting)
        if not busy and not self._was_busy:
            return None
        self._was_busy = busy
        used = stats.num_blocks - stats.num_free_blocks
        fields: dict[str, Any] = {
            "prompt_tokens_per_s": round(prompt / seconds, 1),
            "generation_tokens_per_s": round(generated / seconds, 1),
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
            "kv_cache_usage": round(used / stats.num_blocks if stats.num_blocks else 0.0, 4),
            "prefix_cache_hit_rate": round(hits / queries, 4) if queries else None,
        }
        rate = "-" if not queries else f"{100 * hits / queries:.1f} %"
        text = (f"prompt {fields['prompt_tokens_per_s']} tokens/s, "
                f"generation {fields['generation_tokens_per_s']} tokens/s, "
                f"running {stats.num_running}, waiting {stats.num_waiting}, "
                f"KV cache {100 * fields['kv_cache_usage']:.1f} %, prefix cache hits {rate}")
        return text, fields
