"""ProcessMetrics: CPU time and memory of the processes of one server, from /proc."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PROC = Path("/proc")
# fields of /proc/PID/stat behind the name, which may hold anything but ends with the last ")"
_UTIME, _STIME, _RSS = 11, 12, 21


class ProcessMetrics(Collector):
    """Reads /proc at each scrape; a process that is gone has no sample."""

    def __init__(self, pids: Callable[[], Mapping[str, int]], *, prefix: str) -> None:
        """pids: what a process is called -> its id, as of now."""
        self._pids = pids
        self._prefix = prefix

    def collect(self) -> Iterable[Metric]:
        cpu = CounterMetricFamily(f"{self._prefix}:process_cpu_seconds",
                                  "CPU time of a process, all its threads.", labels=("process",))
        memory = GaugeMetricFamily(f"{self._prefix}:process_resident_memory_bytes",
                                   "Memory of a process, the pages of the model's file that it "
                                   "maps included.", labels=("process",))
        for name, pid in self._pids().items():
            try:
                stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks = int(stat[_UTIME]) + int(stat[_STIME])
            cpu.add_metric((name,), ticks / os.sysconf("SC_CLK_TCK"))
            memory.add_metric((name,), int(stat[_RSS]) * os.sysconf("SC_PAGE_SIZE"))
        yield cpu
        yield memory
