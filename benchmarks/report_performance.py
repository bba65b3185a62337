"""`python -m benchmarks.report_performance --results DIR`: docs/PERFORMANCE.md from result files.

The tables come from the JSON files of `benchmarks.all`; what explains the misses is written by hand
in docs/performance_notes.md and taken over as it is.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import growth, serving, shared_prefix, startup_memory
from benchmarks.common import ROOT
from benchmarks.goals import Results, goals, storage_type

_NOTES = ROOT / "docs" / "performance_notes.md"
_COMPARED = {"single": "One sequence", "batch": "Many sequences",
             "batch_large": "16 and 64 sequences",
             "batch_large_q4_0": "16 and 64 sequences, llama.cpp's fastest file",
             "batch_types": "Many sequences, "
             "other storage types", "long": "A context of 4,096",
             "vllm": "vLLM's engine on the bfloat16 folder"}


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.report_performance",
                                   description=__doc__)
    made.add_argument("--results", type=Path, required=True, metavar="DIR")
    made.add_argument("--notes", type=Path, default=_NOTES, metavar="FILE")
    made.add_argument("--out", type=Path, default=ROOT / "docs" / "PERFORMANCE.md", metavar="FILE")
    args = made.parse_args(argv)
    results = load_results(args.results)
    notes = args.notes.read_text() if args.notes.exists() else ""
    plot = args.results / "growth.svg"
    if plot.exists():
        (args.out.parent / "growth.svg").write_text(plot.read_text())
    args.out.write_text(report(results, notes, has_plot=plot.exists()))
    print(f"written: {args.out}")
    return 0


def load_results(folder: Path) -> Results:
    """Every complete part, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))
            if "." not in path.stem}


def report(results: Results, notes: str, *, has_plot: bool = False) -> str:
    """The document."""
    parts = ["# Performance", "",
             "Written by `python -m benchmarks.report_performance` from the results of",
             ("`python -m benchmarks.all --out DIR --models DIR` (`tools/make_variants.py` makes "
             "models,"),
             "`benchmarks/compare/README.md` says how peers are installed).",
             "", *_machine(results), "", "## Goals", "", _goal_table(results), ""]
    if notes.strip():
        parts += ["## Misses, and what explains them", "", notes.strip(), ""]
    for part, title in _COMPARED.items():
        if part in results:
            parts += [f"## {title}", "", compare_table(results[part]), ""]
    for part, title, text in (
            ("growth", "Growth with context", growth.text),
            ("shared_prefix", "Shared prefix", lambda data: shared_prefix.text(
                data, data["sequences"], data["prefix"])),
            ("startup_memory", "Start and memory", startup_memory.text)):
        if part in results:
            parts += [f"## {title}", ""]
            if part == "growth" and has_plot:
                parts += ["![seconds against context](growth.svg)", ""]
            parts += [text(results[part]), ""]
    if "serving" in results:
        parts += ["## HTTP", ""]
        data = results["serving"]
        if "efficiency" in data:
            parts += [serving.efficiency_text(data["efficiency"])]
        if "stutter" in data:
            parts += [serving.stutter_text(data["stutter"]), ""]
    return "\n".join(parts)


def _machine(results: Results) -> list[str]:
    found = [data["facts"] for data in results.values() if "facts" in data]
    if not found:
        return ["No facts of a machine in the results."]
    fact = found[0]
    versions = {f"{load['entrant']} {load['facts']['version']}" for data in results.values()
                for load in data.get("loads", ()) if "version" in load.get("facts", {})}
    loads = [f["load_average_before"] for f in found if f["load_average_before"] is not None]
    loads += [data["load_average"]["before"] for data in results.values()
              if "loads" in data and data["load_average"]["before"] is not None]
    lines = [(f"- Machine: {fact['cpu']}, {fact['num_cpus']} CPUs, {fact['memory_gib']} GiB, Linux "
             f"{fact['kernel']}, Python {fact['python']}; measured {fact['measured_at'][:10]}."),
             (f"- Octavo {fact['octavo']}, commit {fact['commit']}; peers: "
             f"{', '.join(sorted(versions)) or 'none'}."),
             f"- Load average before the parts: at most {max(loads, default=0.0):.1f}."]
    lines += [f"- {part}: `{data['facts']['command']}`" for part, data in results.items()
              if "facts" in data]
    lines += [f"- Not measured: {line}" for line in dict.fromkeys(
        line for data in results.values() for line in data.get("missing", ()))]
    return lines


def _goal_table(results: Results) -> str:
    words = {True: "met", False: "**missed**", None: "-"}
    lines = ["| goal | target | measured | |", "|---|---|---|---|"]
    lines += [f"| {goal.what} | {goal.target} | {goal.measured} | {words[goal.is_met]} |"
              for goal in goals(results)]
    return "\n".join(lines)


def compare_table(data: dict[str, Any]) -> str:
    """Rates of a run of benchmarks.compare, the best peer's ratio last."""
    names = list(dict.fromkeys(name for row in data["rows"] for name in row["medians"]))
    lines = ["| test | file | " + " | ".join(names) + " | best peer, same file | any file |",
             "|---|---|" + "---:|" * (len(names) + 2)]
    for row in data["rows"]:
        cells = [f"{row['medians'][name]:.0f}" if name in row["medians"] else "-"
                 for name in names]
        cells += [f"{row[key]:.2f}x" if row[key] else "-" for key in ("ratio", "ratio_any")]
        lines.append(f"| {row['test']} | {storage_type(row['model'])} | " + " | ".join(cells)
                     + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
