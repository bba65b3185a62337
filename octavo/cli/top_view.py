"""What `octavo top` knows: the events of a live view folded into the newest state and some history.

No drawing and no connection.
"""

import collections
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

# steps kept: enough for a tall screen and a histogram that moves
_MAX_STEPS = 500
# tokens a second are those of this long
_RATE_WINDOW_S = 3.0
# upper bounds of the histogram, in seconds; the last bucket has none
HISTOGRAM_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class TopView:
    """The view of one server.

    Attributes: hello, state: data of the newest event, None before the first. steps: the last
    ones, oldest first. problem: why nothing new comes, or None. num_dropped: steps never seen.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self.hello: dict[str, Any] | None = None
        self.state: dict[str, Any] | None = None
        self.steps: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MAX_STEPS)
        self.num_dropped = 0
        self.problem: str | None = None
        self._clock = clock
        # (when they came, prompt tokens, output tokens)
        self._tokens: collections.deque[tuple[float, int, int]] = collections.deque()
        self._since = clock()

    def update(self, name: str, data: Any) -> None:
        """Takes an event. Raises the error of one that says that there will be no more."""
        if name == "failed":
            raise data
        if name == "lost":
            self.problem = data
            return
        self.problem = None
        if name == "hello":
            self.hello, self.state = data, None
            self.steps.clear()
            self._tokens.clear()
            self._since = self._clock()
        elif name == "state":
            self.state = data
        elif name == "steps":
            self._take_steps(data)

    def _take_steps(self, data: dict[str, Any]) -> None:
        self.steps.extend(data["steps"])
        self.num_dropped += data["dropped"]
        rows = [row for step in data["steps"] for row in step["reqs"]]
        self._tokens.append((self._clock(), sum(row[1] for row in rows),
                             sum(row[2] for row in rows)))

    def rates(self) -> tuple[float, float]:
        """(prompt tokens, output tokens) a second."""
        now = self._clock()
        while self._tokens and self._tokens[0][0] < now - _RATE_WINDOW_S:
            self._tokens.popleft()
        window = min(max(now - self._since, 0.1), _RATE_WINDOW_S)
        return (sum(t[1] for t in self._tokens) / window,
                sum(t[2] for t in self._tokens) / window)

    def counts(self) -> tuple[int, int]:
        """(running, waiting) requests, as the newest event has them."""
        state, step = self.state, self.steps[-1] if self.steps else None
        if step is not None and (state is None or step["t"] > state["t"]):
            return step["running"], step["waiting"]
        return (0, 0) if state is None else (state["running"], state["waiting"])

    def hit_rate(self) -> float | None:
        """Share of looked up prompt tokens that the prefix cache had; None before the first."""
        totals = self.state["totals"] if self.state else {}
        queries = totals.get("prefix_queries", 0)
        return totals["prefix_hits"] / queries if queries else None

    def histogram(self) -> list[tuple[str, int]]:
        """(label, number of the last steps that took so long), from the first to the last bucket
        that has any."""
        counts = [0] * (len(HISTOGRAM_S) + 1)
        for step in self.steps:
            counts[sum(step["dt"] > bound for bound in HISTOGRAM_S)] += 1
        bounds = [0.0, *HISTOGRAM_S]
        labels = [_range(low, high) for low, high in itertools.pairwise(bounds)]
        labels.append(f"> {HISTOGRAM_S[-1]:g} s")
        used = [i for i, count in enumerate(counts) if count]
        return [] if not used else [(labels[i], counts[i])
                                    for i in range(used[0], used[-1] + 1)]

    def median_step_s(self) -> float | None:
        """Of the last steps; None before the first."""
        return statistics.median(step["dt"] for step in self.steps) if self.steps else None


def _range(low: float, high: float) -> str:
    if high <= 1:
        return f"{1000 * low:g}-{1000 * high:g} ms"
    return f"{low:g}-{high:g} s"
