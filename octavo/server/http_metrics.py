"""HttpMetrics: how many requests each route answered, and how. Labels are bounded: the routes and
methods are ours, never what a client made up.
"""

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from octavo.server.request_record import RequestRecord

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics(Collector):
    """Counts answers; a collector of them, together with those of an engine."""

    def __init__(self, engine: CollectorRegistry, *, prefix: str) -> None:
        """engine: whose metrics come first."""
        self._engine = engine
        self._prefix = prefix
        self._answers: Counter[tuple[str, str, str]] = Counter()

    def observe(self, record: RequestRecord) -> None:
        """Counts a request that is over. A status of 0: the client left before any answer."""
        method = record.method if record.method in _METHODS else "other"
        self._answers[method, record.route, str(record.status)] += 1

    def collect(self) -> Iterable[Metric]:
        yield from self._engine.collect()
        family = CounterMetricFamily(
            f"{self._prefix}:http_requests", "HTTP requests answered, by route and status.",
            labels=("method", "handler", "status"))
        for labels, count in sorted(self._answers.items()):
            family.add_metric(labels, count)
        yield family
