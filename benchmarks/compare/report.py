"""A run's outcome as a table, as JSON and as an SVG chart. Ratios are ratios of medians."""

import dataclasses
import html
import statistics
from pathlib import Path
from typing import Any

from benchmarks.compare.cases import Case
from benchmarks.compare.runner import Outcome, Series

# a machine that does nothing else stays well below this
QUIET_LOAD = 0.5


@dataclasses.dataclass(slots=True, frozen=True)
class Row:
    """One case with one model file. medians: tokens/s by entrant. ratio: octavo against the best
    peer on this file; ratio_any: against the best peer on any file. None where one is missing."""

    case: Case
    model: str
    medians: dict[str, float]
    errors: dict[str, str]
    ratio: float | None
    ratio_any: float | None


def rows_of(outcome: Outcome) -> list[Row]:
    """The table, in the order measured."""
    cases = list(dict.fromkeys(series.case for series in outcome.series))
    rows = []
    for case in cases:
        here = [series for series in outcome.series if series.case == case]
        on_servers = [s for s in here if s.entrant.startswith("url=")]
        local = [s for s in here if s not in on_servers]
        peers_anywhere = [_median(s) for s in here if s.entrant != "octavo" and s.samples]
        for model in dict.fromkeys(s.model for s in local):
            shown = [s for s in local if s.model == model] + on_servers
            medians = {s.entrant: _median(s) for s in shown if s.samples}
            peers = [rate for name, rate in medians.items() if name != "octavo"]
            ours = medians.get("octavo")
            rows.append(Row(
                case, model, medians,
                {s.entrant: s.error for s in shown if s.error is not None},
                ours / max(peers) if ours and peers else None,
                ours / max(peers_anywhere) if ours and peers_anywhere else None))
    return rows


def _median(series: Series) -> float:
    return statistics.median(series.samples)


def table_text(outcome: Outcome) -> str:
    """A Markdown table: one row a case and file."""
    rows = rows_of(outcome)
    names = list(dict.fromkeys(series.entrant for series in outcome.series))
    lines = ["| test | file | " + " | ".join(f"{name} tok/s" for name in names)
             + " | best peer, same file | best peer, any file |",
             "|---|---|" + "---:|" * (len(names) + 2)]
    for row in rows:
        cells = [f"{row.medians[name]:.1f}" if name in row.medians
                 else "failed" if name in row.errors else "-" for name in names]
        cells += ["-" if ratio is None else f"{ratio:.2f}x" for ratio in (row.ratio,
                                                                          row.ratio_any)]
        lines.append(f"| {row.case.name} | {Path(row.model).name} | " + " | ".join(cells) + " |")
    notes = [f"missing: {line}" for line in outcome.missing]
    if outcome.load_before is not None and outcome.load_before > QUIET_LOAD:
        notes.append(f"busy machine: load average {outcome.load_before:.1f} before the run. "
                     "Engines whose threads spin lose most by that: quote ratios of a quiet "
                     "machine only.")
    notes += [f"failed: {load['entrant']} on {Path(load['model']).name}: {load['error']}"
              for load in outcome.loads if "error" in load]
    notes += [f"failed: {name} in {row.case.name}: {error}"
              for row in rows for name, error in row.errors.items()]
    return "\n".join([*lines, "", *_cpu_table(outcome, names), *dict.fromkeys(notes)])


def _cpu_table(outcome: Outcome, names: list[str]) -> list[str]:
    """Tokens a second of CPU time: what a busy machine changes least. An engine with two threads
    does less a CPU-second than with one; a server's CPU time is not known here."""
    local = [name for name in names if not name.startswith("url=")]
    lines = ["| tokens per CPU-second | file | " + " | ".join(local) + " |",
             "|---|---|" + "---:|" * len(local)]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for series in outcome.series:
        if series.entrant in local and series.cpu_samples:
            cells = found.setdefault((series.case.name, Path(series.model).name), {})
            cells[series.entrant] = statistics.median(series.cpu_samples)
    for (case, file), cells in found.items():
        lines.append(f"| {case} | {file} | " + " | ".join(
            f"{cells[name]:.1f}" if name in cells else "-" for name in local) + " |")
    return [*lines, ""]


def outcome_json(outcome: Outcome, *, threads: int, cpu: str) -> dict[str, Any]:
    """Everything, samples included."""
    return {
        "format": "octavo-compare/1", "cpu": cpu, "threads": threads,
        "load_average": {"before": outcome.load_before,
                         "least": min(outcome.load_averages, default=None),
                         "most": max(outcome.load_averages, default=None)},
        "missing": outcome.missing, "loads": outcome.loads, "machine": outcome.probes,
        "rows": [{"test": row.case.name, **dataclasses.asdict(row)} for row in rows_of(outcome)],
        "samples": [dataclasses.asdict(series) for series in outcome.series],
    }


_BAR, _GAP, _LEFT, _WIDTH = 18, 6, 240, 520
_COLOURS = ("#1b6ca8", "#c9772b", "#5b8c3e", "#8a4f9e", "#777777")


def chart_svg(outcome: Outcome) -> str:
    """Bars: each case scaled to its fastest entrant, rates in tokens/s beside them."""
    names = list(dict.fromkeys(series.entrant for series in outcome.series))
    parts: list[str] = []
    y = 30
    for row in rows_of(outcome):
        title = html.escape(f"{row.case.name}  {Path(row.model).name}")
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{title}</text>')
        y += _GAP
        best = max(row.medians.values(), default=1.0)
        for name, rate in row.medians.items():
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            width = _WIDTH * rate / best
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">'
                         f'{html.escape(name)}</text>'
                         f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" '
                         f'fill="{colour}"/>'
                         f'<text x="{_LEFT + width + 6:.1f}" y="{y + 13}">{rate:.0f}</text>')
            y += _BAR + 2
        y += 24
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 80}" height="{y}" '
            'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
            f'fill="white"/>{"".join(parts)}</svg>\n')
