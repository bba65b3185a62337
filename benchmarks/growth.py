"""`python -m benchmarks.growth`: cost of prefill and decode against context length, with a plot.

Runs the group "growth" of benchmarks.compare and sets Octavo's times beside what the arithmetic
says: bytes over measured bandwidth, products over measured peak. A share of that bound that stays
the same from the shortest context to the longest is growth as predicted.
"""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import facts, write_json
from benchmarks.compare import __main__ as compare
from octavo.bench.machine_probe import merge_probes, probe_from_json
from octavo.bench.plot import Curve, Panel, plot_svg, write_plot
from octavo.bench.roofline import ModelCost, decode_bound, prefill_bound

# of a step in benchmarks/compare: the engine's default
_STEP_TOKENS = 512


def main(argv: list[str] | None = None) -> int:
    """Entry point; arguments that are not its own go to benchmarks.compare."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    made.add_argument("--json", type=Path, default=Path("growth.json"), metavar="FILE")
    made.add_argument("--plot", type=Path, metavar="FILE.svg", help="the picture")
    made.add_argument("--short", action="store_true", help="contexts up to 2,048 only")
    made.add_argument("--from", dest="source", type=Path, metavar="FILE",
                      help="a result of benchmarks.compare, instead of a run")
    args, rest = made.parse_known_args(argv)
    source = args.source
    if source is None:
        source = args.json.with_suffix(".compare.json")
        tests = "growth-short" if args.short else "growth"
        status = compare.main(["--tests", tests, "--out", str(source), *rest])
        if status:
            return status
    data = growth(json.loads(source.read_text()))
    write_json(args.json, "growth", {"facts": facts(), **data})
    print(text(data))
    if args.plot is not None:
        write_plot(args.plot, plot_svg(panels(data)))
    return 0


def growth(result: dict[str, Any]) -> dict[str, Any]:
    """Points of every engine and file: tokens, seconds of a prompt or a step; Octavo's also with
    the bound."""
    points = []
    for sample in result["samples"]:
        case = sample["case"]
        if not sample["samples"]:
            continue
        rates = sorted(sample["samples"])
        rate = rates[len(rates) // 2]
        is_prefill = case["kind"] == "pp"
        length = case["tokens"] if is_prefill else (
            case["context"] + case["tokens"] * (case["windows"] + 1) // 2)
        point = {"entrant": sample["entrant"], "model": Path(sample["model"]).name,
                 "kind": case["kind"], "tokens": case["tokens"] if is_prefill else case["context"],
                 "rate": rate, "seconds": length / rate if is_prefill else 1 / rate}
        if sample["entrant"] == "octavo":
            point["bound_s"] = _bound(result, sample["model"], is_prefill, length)
            point["share"] = point["bound_s"] / point["seconds"]
        points.append(point)
    return {"model": points[0]["model"] if points else None, "threads": result["threads"],
            "points": points}


def _bound(result: dict[str, Any], model: str, is_prefill: bool, length: int) -> float:
    probes = [probe_from_json(entry["probe"]) for entry in result["machine"]]
    probe = functools.reduce(merge_probes, probes)  # one machine: what it could do at its best
    cost = ModelCost(**next(entry["cost"] for entry in result["machine"]
                            if entry["model"] == model))
    if is_prefill:
        return prefill_bound(cost, probe, threads=result["threads"], tokens=length,
                             step_tokens=_STEP_TOKENS).seconds
    return decode_bound(cost, probe, threads=result["threads"], sequences=1,
                        context=length).seconds


def panels(data: dict[str, Any]) -> list[Panel]:
    """Prefill and decode."""
    found = []
    for kind, title, unit, scale in (("pp", "prefill of a prompt", "seconds", 1.0),
                                     ("tg", "one decode step", "milliseconds", 1000.0)):
        here = [point for point in data["points"] if point["kind"] == kind]
        curves = []
        for entrant, model in dict.fromkeys((p["entrant"], p["model"]) for p in here):
            mine = [p for p in here if (p["entrant"], p["model"]) == (entrant, model)]
            name = f"{entrant} {model.removesuffix('.gguf').rpartition('.')[2]}"
            curves.append(Curve(name, [(p["tokens"], scale * p["seconds"]) for p in mine]))
            if entrant == "octavo":
                curves.append(Curve(f"{name}: bound", [(p["tokens"], scale * p["bound_s"])
                                                       for p in mine], is_dashed=True))
        if curves:
            found.append(Panel(f"{title}, {unit}", "context, tokens", curves))
    return found


def text(data: dict[str, Any]) -> str:
    """For people."""
    lines = ["| engine | file | work | tok/s | seconds | of the bound |", ("|---|---|---|---:|---:|"
             "---:|")]
    for point in data["points"]:
        share = f"{100 * point['share']:.0f} %" if "share" in point else "-"
        work = "prefill" if point["kind"] == "pp" else "decode at"
        lines.append(f"| {point['entrant']} | {point['model']} | {work} {point['tokens']} | "
                     f"{point['rate']:.0f} | {point['seconds']:.4f} | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
