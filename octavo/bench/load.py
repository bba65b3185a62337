"""Sends requests as a schedule says and collects what became of each. Transport-free.

The sender is a coroutine; it fills a RequestRecord and never raises. The generator's own CPU time
is measured, because it may share its CPUs with what it measures.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from octavo.bench.datasets import BenchRequest
from octavo.errors import ConfigError


@dataclasses.dataclass(slots=True)
class RequestRecord:
    """What became of one request; times in seconds, start_s on the monotonic clock.

    itl_s: gaps between pieces of the answer, first piece excluded. error: one line, None if the
    request succeeded.
    """

    start_s: float = 0.0
    ttft_s: float = 0.0
    latency_s: float = 0.0
    itl_s: list[float] = dataclasses.field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.error is None

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token behind the first; None with fewer than two."""
        if self.num_output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.num_output_tokens - 1)


Sender = Callable[[BenchRequest], Awaitable[RequestRecord]]


@dataclasses.dataclass(slots=True, frozen=True)
class LoadResult:
    """All records in the order of the requests. cpu_s: CPU time of this process, all threads."""

    records: list[RequestRecord]
    duration_s: float
    cpu_s: float
    peak_concurrency: int


def arrival_times(count: int, *, request_rate: float, burstiness: float = 1.0,
                  seed: int = 0) -> list[float]:
    """Seconds after the start at which each request is due, the first at once.

    request_rate: a second, inf: all at once. Gaps are gamma distributed with shape `burstiness`:
    1 is a Poisson process, less is burstier, more is steadier. The gaps are scaled so that the
    last request is due at (count - 1) / request_rate. Raises ConfigError.
    """
    if not request_rate > 0:
        raise ConfigError(f"request_rate is {request_rate}: give a number above 0, or inf",
                          param="request_rate")
    if not 0 < burstiness < math.inf:
        raise ConfigError(f"burstiness is {burstiness}: give a number above 0",
                          param="burstiness")
    if math.isinf(request_rate) or count < 2:
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (request_rate * burstiness),
                                             count - 1)
    total = float(gaps.sum())
    scale = (count - 1) / request_rate / total if total > 0 else 0.0
    return [0.0, *(float(t) for t in np.cumsum(gaps) * scale)]


async def run_load(requests: Sequence[BenchRequest], send: Sender, *,
                   due_s: Sequence[float], max_concurrency: int | None = None) -> LoadResult:
    """Sends each request when it is due, at most max_concurrency at a time.

    A request's clock starts when it is sent: waiting for a free place is not part of its times.
    """
    assert len(due_s) == len(requests)
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}: give at least 1",
                          param="max_concurrency")
    places = asyncio.Semaphore(max_concurrency) if max_concurrency else None
    running = peak = 0

    async def one(request: BenchRequest) -> RequestRecord:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            return await send(request)
        finally:
            running -= 1

    async def placed(request: BenchRequest) -> RequestRecord:
        if places is None:
            return await one(request)
        async with places:
            return await one(request)

    clock = asyncio.get_running_loop().time
    cpu, started = time.process_time(), clock()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for request, due in zip(requests, due_s, strict=True):
            delay = started + due - clock()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(placed(request)))
    duration = clock() - started
    return LoadResult([task.result() for task in tasks], duration, time.process_time() - cpu, peak)
