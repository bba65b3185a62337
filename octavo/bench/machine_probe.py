"""What this machine can do at best: dot products, memory reads by footprint, thread latencies.

The other benches express themselves in percent of it. Runs native loops (csrc/probe.cc); where
the native module is missing, NumPy stands in on one thread. Knows no model and prints nothing.
"""

import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from octavo.bench.stats import load_average
from octavo.errors import ConfigError
from octavo.machine import machine_facts

MB = 1 << 20
FOOTPRINTS_MB = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512)
KINDS = ("int8", "bf16", "f32")
_FORMAT = "octavo-machine/1"
# Peaks are best samples, so many short ones: on a busy machine only short ones have all the CPUs
# for themselves. Long enough to make little of the 50 us until the second thread has come.
_DOT_MS = 3.0
_DOT_SAMPLES_FACTOR = 8
_READ_MS = 25.0  # a few reads of the largest footprint
_BARRIER_PHASES = 400
_WAKE_SAMPLES = 15


@dataclasses.dataclass(slots=True, frozen=True)
class Rate:
    """One measurement: best and median of its samples, in MAC/s or bytes/s."""

    name: str  # int8, bf16, f32 or read
    isa: str
    threads: int
    best: float
    median: float
    footprint: int = 0  # bytes, for reads


@dataclasses.dataclass(slots=True, frozen=True)
class MachineProbe:
    """All measurements of one run. Latencies in seconds: barrier between two phases of the pool
    with all threads, wake-up of its sleeping threads; None with a single thread.

    Peaks are the best samples: the hardware's constant, which a busy neighbour only hides.
    Bandwidths are medians: neighbours share the memory, and what they leave is the limit.
    """

    cpu: str
    threads: int
    rates: tuple[Rate, ...]
    barrier_s: float | None
    wake_s: float | None
    load_average: tuple[float, ...] | None
    measured_at: str

    def peak(self, kind: str, threads: int) -> float:
        """MAC/s of the best form of the kind. bf16 without an instruction of its own counts as
        f32: that is how it then is computed."""
        found = self._of(kind, threads) or (self._of("f32", threads) if kind == "bf16" else [])
        if not found:
            raise ConfigError(f"the machine probe has no {kind} rate: run `octavo bench machine` "
                              "again on this machine", param="machine")
        return max(rate.best for rate in found)

    def bandwidth(self, footprint: int, threads: int) -> float:
        """Bytes/s at a footprint, interpolated in its logarithm between those measured."""
        fastest: dict[int, float] = {}
        for rate in self._of("read", threads):
            fastest[rate.footprint] = max(rate.median, fastest.get(rate.footprint, 0.0))
        curve = sorted(fastest.items())
        if not curve:
            raise ConfigError("the machine probe has no read rates: run `octavo bench machine` "
                              "again on this machine", param="machine")
        if footprint <= curve[0][0]:
            return curve[0][1]
        for (low, low_rate), (high, high_rate) in itertools.pairwise(curve):
            if footprint <= high:
                share = math.log(footprint / low) / math.log(high / low)
                return low_rate + (high_rate - low_rate) * share
        return curve[-1][1]

    def _of(self, name: str, threads: int) -> list[Rate]:
        """Rates of the nearest thread count measured."""
        named = [rate for rate in self.rates if rate.name == name]
        if not named:
            return []
        nearest = min({rate.threads for rate in named}, key=lambda n: (abs(n - threads), n))
        return [rate for rate in named if rate.threads == nearest]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; load_probe reads it back."""
        return {"format": _FORMAT, **dataclasses.asdict(self)}


def load_probe(path: Path) -> MachineProbe:
    """Reads what `octavo bench machine --json` wrote. Raises ConfigError."""
    try:
        return probe_from_json(json.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", param="machine") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no machine probe ({type(error).__name__}: {error}): make one "
                          "with `octavo bench machine --json FILE`", param="machine") from None


def probe_from_json(data: Any) -> MachineProbe:
    """The probe of a JSON object. Raises ValueError, KeyError or TypeError for anything else."""
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError(f"format is not {_FORMAT}")
    fields = {field.name: data[field.name] for field in dataclasses.fields(MachineProbe)}
    fields["rates"] = tuple(Rate(**rate) for rate in fields["rates"])
    return MachineProbe(**fields)


def probe_machine(*, threads: int | None = None, samples: int = 7,
                  footprints_mb: Sequence[int] = FOOTPRINTS_MB,
                  sample_ms: float | None = None,
                  progress: Callable[[str], None] = lambda what: None) -> MachineProbe:
    """Measures this machine: about 10 s with the defaults.

    threads: the most threads to measure with (default: physical cores this process may use).
    samples: of each read; dot products get 8 times as many. footprints_mb: of the reads.
    sample_ms: length of a sample, in place of the tuned ones. progress: told what comes next.
    """
    from octavo.backends.cpu.backend import native_problem

    has_native = native_problem() is None
    facts = machine_facts(has_native=has_native)
    most = threads or facts.num_cores
    before = load_average()
    measure: _NativeProbe | _NumpyProbe = _NumpyProbe(samples)
    if has_native:
        measure = _NativeProbe(facts.num_affinity_cpus, samples, sample_ms)
    rates: list[Rate] = []
    counts = (1,) if most == 1 or measure.is_single else (1, most)
    for isa, names in measure.forms:
        for kind in KINDS:
            for count in counts if kind in names else ():
                progress(f"{kind} dot products, {isa}, {count} threads")
                rates.append(_rate(kind, isa, count, measure.dot(isa, kind, count)))
    for mb in footprints_mb:
        for count in counts:
            progress(f"reads of {mb} MB, {count} threads")
            # Which load width draws most from memory depends on the CPU's prefetcher.
            found = [_rate("read", isa, count, measure.read(isa, mb * MB, count), mb * MB)
                     for isa, names in measure.forms if "read" in names]
            rates.append(max(found, key=lambda rate: rate.median))
    progress("thread latencies")
    pair = len(counts) > 1
    return MachineProbe(
        cpu=cpu_model(), threads=most, rates=tuple(rates),
        barrier_s=statistics.median(measure.barrier(most)) if pair else None,
        wake_s=statistics.median(measure.wake(most)) if pair else None,
        load_average=before, measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def merge_probes(before: MachineProbe, after: MachineProbe) -> MachineProbe:
    """Of two probes of one machine, taken around a run, the better figure of each: what the
    machine could do at some time of the run bounds what the run could reach."""
    others = {(r.name, r.isa, r.threads, r.footprint): r for r in after.rates}
    rates = []
    for rate in before.rates:
        other = others.pop((rate.name, rate.isa, rate.threads, rate.footprint), rate)
        rates.append(dataclasses.replace(rate, best=max(rate.best, other.best),
                                         median=max(rate.median, other.median)))
    return dataclasses.replace(before, rates=(*rates, *others.values()))


def _rate(name: str, isa: str, threads: int, samples: list[float], footprint: int = 0) -> Rate:
    return Rate(name, isa, threads, max(samples), statistics.median(samples), footprint)


def cpu_model() -> str:
    """The CPU's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine()


class _NativeProbe:
    """Samples of the native loops."""

    is_single = False

    def __init__(self, usable_cpus: int, samples: int, sample_ms: float | None) -> None:
        from octavo.backends.cpu.backend import native_module

        self._native = native_module()
        self._cpus, self._samples = usable_cpus, samples
        self._dot_ms, self._read_ms = sample_ms or _DOT_MS, sample_ms or _READ_MS
        self.forms: list[tuple[str, list[str]]] = self._native.probe_forms()

    def dot(self, isa: str, kind: str, threads: int) -> list[float]:
        return list(self._native.probe_dot(isa, kind, threads, self._cpus,
                                           _DOT_SAMPLES_FACTOR * self._samples, self._dot_ms))

    def read(self, isa: str, footprint: int, threads: int) -> list[float]:
        return list(self._native.probe_read(isa, footprint, threads, self._cpus, self._samples,
                                            self._read_ms))

    def barrier(self, threads: int) -> list[float]:
        return list(self._native.probe_barrier(threads, self._cpus, self._samples,
                                               _BARRIER_PHASES))

    def wake(self, threads: int) -> list[float]:
        return list(self._native.probe_wake(threads, self._cpus, _WAKE_SAMPLES))


class _NumpyProbe:
    """One thread of NumPy, where nothing was compiled: what the reference backend can reach."""

    is_single = True
    forms: ClassVar[list[tuple[str, list[str]]]] = [("numpy", ["f32", "read"])]

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def dot(self, isa: str, kind: str, threads: int) -> list[float]:
        import numpy as np

        from octavo.backends.reference.blas_threads import set_blas_threads

        set_blas_threads(1)
        size = 512
        a, b = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
        a @ b  # the first product loads code
        return [size**3 / _time(lambda: a @ b) for _ in range(self._samples)]

    def read(self, isa: str, footprint: int, threads: int) -> list[float]:
        import numpy as np

        data = np.ones(footprint // 8, np.int64)
        return [data.nbytes / _time(data.max) for _ in range(self._samples)]

    def barrier(self, threads: int) -> list[float]:
        raise AssertionError("one thread has no barrier")

    def wake(self, threads: int) -> list[float]:
        raise AssertionError("one thread needs no waking")


def _time(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return max(time.perf_counter() - started, 1e-9)
