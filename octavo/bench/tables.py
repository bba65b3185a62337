"""Results of the machine and engine benches as tables for people and as JSON. Measures nothing."""

import dataclasses
import math
from typing import Any

from rich.table import Table

from octavo.bench.engine_bench import CaseResult
from octavo.bench.machine_probe import MB, MachineProbe
from octavo.bench.stats import Summary, load_average


def machine_tables(probe: MachineProbe) -> list[Table]:
    """Dot products, reads, latencies."""
    counts = sorted({rate.threads for rate in probe.rates})
    dots = Table(title="dot products, GMAC/s: median (best)")
    reads = Table(title="memory reads, GB/s: median (best)")
    for table, first in ((dots, "form"), (reads, "footprint")):
        table.add_column(first)
        for count in counts:
            table.add_column(f"{count} thread{'s' * (count > 1)}", justify="right")
    cells: dict[tuple[str, bool], dict[int, str]] = {}
    for rate in probe.rates:
        is_read = rate.name == "read"
        name = f"{rate.footprint // MB} MB" if is_read else f"{rate.name} {rate.isa}"
        text = f"{rate.median / 1e9:.1f} ({rate.best / 1e9:.1f})"
        cells.setdefault((name, is_read), {})[rate.threads] = text
    for (name, is_read), by_count in cells.items():
        (reads if is_read else dots).add_row(name, *(by_count.get(n, "") for n in counts))
    tables = [dots, reads]
    if probe.barrier_s is not None and probe.wake_s is not None:
        latencies = Table(title=f"{probe.threads} threads of the pool, median")
        latencies.add_column("latency")
        latencies.add_column("µs", justify="right")
        latencies.add_row("barrier between two phases", f"{probe.barrier_s * 1e6:.1f}")
        latencies.add_row("wake-up of sleeping threads", f"{probe.wake_s * 1e6:.1f}")
        tables.append(latencies)
    return tables


def engine_table(results: list[CaseResult], *, title: str) -> Table:
    """One row a case."""
    has_roofline = any(result.roofline is not None for result in results)
    table = Table(title=title)
    table.add_column("test")
    for column in ("tok/s", "median", "tok/CPU-s"):
        table.add_column(column, justify="right")
    if has_roofline:
        table.add_column("roofline", justify="right")
        table.add_column("%", justify="right")
        table.add_column("limit")
    for result in results:
        rate = result.rate
        row = [result.case.name, f"{rate.mean:.1f} ± {rate.std:.1f}", f"{rate.median:.1f}",
               f"{result.tokens_per_cpu_s.median:.1f}"]
        if result.roofline is not None and result.percent is not None:
            row += [f"{result.roofline:.0f}", f"{result.percent:.0f}", result.limit or ""]
        table.add_row(*row)
    return table


def engine_json(results: list[CaseResult], *, model: str, facts: dict[str, str],
                load_s: float, probe: MachineProbe | None) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "format": "octavo-bench-engine/1", "model": model, "load_s": load_s,
        "load_average": load_average(),
        "facts": {k: facts[k] for k in ("isa", "threads", "weights_bytes", "kv_bytes")
                  if k in facts},
        "machine": None if probe is None else probe.to_json(),
        "tests": [_case_json(result) for result in results],
    }


def _case_json(result: CaseResult) -> dict[str, Any]:
    return {
        "test": result.case.name, **dataclasses.asdict(result.case),
        "tokens_per_s": _plain(result.rate),
        "tokens_per_cpu_s": _plain(result.tokens_per_cpu_s),
        "samples": [run.tokens / run.seconds for run in result.runs],
        "roofline_tokens_per_s": result.roofline, "percent_of_roofline": result.percent,
        "limit": result.limit,
    }


def _plain(summary: Summary) -> dict[str, float | None]:
    """NaN is no JSON."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v
            for k, v in dataclasses.asdict(summary).items()}
