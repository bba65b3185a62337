"""Draws a result file as PNG: `plot_worker.py RESULTS.json CHART.png`. Needs matplotlib only."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(results: Path, chart: Path) -> None:
    """One panel a case and file, bars in tokens a second."""
    rows = [row for row in json.loads(results.read_text())["rows"] if row["medians"]]
    names = list(dict.fromkeys(name for row in rows for name in row["medians"]))
    figure, axes = plt.subplots(len(rows), 1, figsize=(8, 0.9 + 1.1 * len(rows)), squeeze=False)
    for axis, row in zip(axes[:, 0], rows, strict=True):
        shown = list(row["medians"])
        rates = [row["medians"][name] for name in shown]
        bars = axis.barh(shown, rates, color=[f"C{names.index(name)}" for name in shown])
        axis.bar_label(bars, fmt="%.0f", padding=3)
        axis.set_title(f"{row['test']}, {Path(row['model']).name}", loc="left", fontsize=9)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.12 * max(rates))
        axis.tick_params(labelsize=8)
    axes[-1, 0].set_xlabel("tokens/s (median)")
    figure.tight_layout()
    figure.savefig(chart, dpi=120)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
