"""Diagrams as SVG: lines and points, bars, maps of blocks. No dependency, no script.

Text and lines follow the reader's light or dark theme. Knows nothing of what diagrams say.
"""

import dataclasses
import html
import math
from collections.abc import Sequence
from pathlib import Path

# far enough apart for readers who confuse red and green, and of middling lightness: they serve on
# white and on black
COLOURS = ("#2f80c2", "#d9822b", "#3f9b5d", "#9a62b8", "#c94f5d", "#7d8791", "#b0932f", "#3aa3a3")
_WIDTH, _HEIGHT = 480, 300
_LEFT, _TOP, _BOTTOM, _RIGHT = 76, 44, 54, 230
_FULL_WIDTH = _LEFT + _WIDTH + _RIGHT
_LEGEND_CHARS = 32  # of a line of the legend
_STYLE = """
.oplot{font:12px system-ui,sans-serif;fill:#24292f}.oplot .back{fill:#ffffff}
.oplot .grid{stroke:#d8dee4;fill:none}.oplot .axis{stroke:#57606a;fill:none}
.oplot .soft{fill:#57606a}.oplot .title{font-weight:600;font-size:14px}
.oplot .empty{fill:#d8dee4}
.oplot .label{stroke:#ffffff;stroke-width:3px;paint-order:stroke}
@media (prefers-color-scheme:dark){.oplot{fill:#e6edf3}.oplot .back{fill:#0d1117}
.oplot .grid{stroke:#30363d}.oplot .axis{stroke:#8b949e}.oplot .soft{fill:#9da7b1}
.oplot .empty{fill:#30363d}.oplot .label{stroke:#0d1117}}
"""


@dataclasses.dataclass(slots=True, frozen=True)
class Curve:
    """Points (x, y). A dashed curve takes the colour of the one before it. labels: beside the
    points, "" for none. has_line: points of one curve are joined."""

    name: str
    points: list[tuple[float, float]]
    is_dashed: bool = False
    labels: list[str] = dataclasses.field(default_factory=list)
    has_line: bool = True


@dataclasses.dataclass(slots=True, frozen=True)
class Panel:
    """One diagram of curves. Linear axes begin at 0 (x: unless x_from_0 is off); values on
    logarithmic ones are above 0."""

    title: str
    x_label: str
    curves: list[Curve]
    y_label: str = ""
    is_log_x: bool = False
    is_log_y: bool = False
    x_from_0: bool = True


@dataclasses.dataclass(slots=True, frozen=True)
class Bars:
    """Groups of bars from 0: one group a category, one bar a series; values of a series are in
    the order of the categories."""

    title: str
    y_label: str
    categories: list[str]
    series: list[tuple[str, list[float]]]


@dataclasses.dataclass(slots=True, frozen=True)
class BlockMap:
    """Memory as squares, row by row. rows: a name and one number a block: what is in it, an index
    into `kinds`; -1: empty. kinds: names for the legend, at most the first eight are shown."""

    title: str
    kinds: list[str]
    rows: list[tuple[str, list[int]]]


Diagram = Panel | Bars | BlockMap


def plot_svg(diagrams: Sequence[Diagram]) -> str:
    """The diagrams, one below the other."""
    parts, height = [], 0.0
    for diagram in diagrams:
        if isinstance(diagram, Panel):
            part, used = _panel_svg(diagram, height)
        elif isinstance(diagram, Bars):
            part, used = _bars_svg(diagram, height)
        else:
            part, used = _block_map_svg(diagram, height)
        parts.append(part)
        height += used
    return (f'<svg xmlns="http://www.w3.org/2000/svg" class="oplot" width="{_FULL_WIDTH}" '
            f'height="{height:.0f}" viewBox="0 0 {_FULL_WIDTH} {height:.0f}" role="img">'
            f'<style>{_STYLE}</style><rect class="back" width="100%" height="100%"/>'
            f'{"".join(parts)}</svg>\n')


def write_plot(path: Path, svg: str) -> None:
    """The SVG at `path`."""
    path.with_suffix(".svg").write_text(svg)


@dataclasses.dataclass(slots=True, frozen=True)
class _Axis:
    """From values to 0 .. 1, and where the ticks are."""

    low: float
    high: float
    ticks: list[float]
    is_log: bool

    def at(self, value: float) -> float:
        if self.is_log:
            span = math.log(self.high / self.low)
            return math.log(max(value, self.low) / self.low) / span
        return (value - self.low) / (self.high - self.low)


def _axis(values: Sequence[float], is_log: bool, *, from_0: bool = True) -> _Axis:
    values = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
    if is_log and values:
        low, high = _round_down(min(values)), _round_up(max(values))
        high = high if high > low else 2 * low
        decades = [10.0**e for e in range(math.floor(math.log10(low)),
                                          math.ceil(math.log10(high)) + 1)]
        ticks = [m * d for d in decades for m in (1, 2, 5)
                 if low * 0.999 <= m * d <= high * 1.001]
        if len(ticks) > 10:
            ticks = [d for d in decades if low * 0.999 <= d <= high * 1.001]
        return _Axis(low, high, ticks, is_log=True)
    most = max(values, default=0.0)
    if most <= 0:
        most = 1.0
    least = 0.0 if from_0 else min(values, default=0.0)
    span = most - least or most
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(m * power for m in (1, 2, 2.5, 5, 10, 20) if m * power * 5 >= span * 0.999)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    last = max(last, first + 1)
    return _Axis(first * step, last * step, [i * step for i in range(first, last + 1)],
                 is_log=False)


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (5, 2, 1) if m * power <= value * 1.000001)


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.999999)


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "",
          turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    css = f' class="{css}"' if css else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}{turn}>'
            f'{html.escape(text)}</text>')


def _frame(title: str, y_label: str, y_axis: _Axis, y0: float) -> list[str]:
    """Title, y axis with its grid."""
    bottom = y0 + _TOP + _HEIGHT
    parts = [_text(_LEFT, y0 + 26, title, css="title")]
    if y_label:
        parts.append(_text(18, y0 + _TOP + _HEIGHT / 2, y_label, anchor="middle", css="soft",
                           turned=True))
    for tick in y_axis.ticks:
        y = bottom - _HEIGHT * y_axis.at(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}h{_WIDTH}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end", css="soft"))
    parts.append(f'<path class="axis" d="M{_LEFT} {y0 + _TOP}V{bottom}h{_WIDTH}"/>')
    return parts


def _legend(names: Sequence[tuple[str, str, bool]], y0: float) -> str:
    """(name, colour, dashed) below each other, to the right of the diagram."""
    parts, y, x = [], y0 + _TOP + 8, _LEFT + _WIDTH + 18
    for name, colour, is_dashed in names:
        dash = ' stroke-dasharray="4 3"' if is_dashed else ""
        parts.append(f'<path d="M{x} {y:.1f}h16" stroke="{colour}" stroke-width="3"{dash}/>')
        for line in _wrapped(name):
            parts.append(_text(x + 22, y + 4, line))
            y += 15
        y += 5
    return "".join(parts)


def _wrapped(name: str) -> list[str]:
    lines = [""]
    for word in name.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _LEGEND_CHARS:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _panel_svg(panel: Panel, y0: float) -> tuple[str, float]:
    points = [p for curve in panel.curves for p in curve.points]
    x_axis = _axis([x for x, _ in points], panel.is_log_x, from_0=panel.x_from_0)
    y_axis = _axis([y for _, y in points], panel.is_log_y)
    bottom = y0 + _TOP + _HEIGHT
    parts = _frame(panel.title, panel.y_label, y_axis, y0)
    for tick in x_axis.ticks:
        parts.append(_text(_LEFT + _WIDTH * x_axis.at(tick), bottom + 18, f"{tick:g}",
                           anchor="middle", css="soft"))
    parts.append(_text(_LEFT + _WIDTH / 2, bottom + 38, panel.x_label, anchor="middle",
                       css="soft"))
    colour, names = -1, []
    for curve in panel.curves:
        colour += not curve.is_dashed
        shade = COLOURS[max(colour, 0) % len(COLOURS)]
        names.append((curve.name, shade, curve.is_dashed))
        spots = [(_LEFT + _WIDTH * x_axis.at(x), bottom - _HEIGHT * y_axis.at(y))
                 for x, y in curve.points]
        if curve.has_line:
            dash = ' stroke-dasharray="5 4"' if curve.is_dashed else ""
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{shade}" '
                         f'stroke-width="2"{dash}/>')
        if not curve.is_dashed:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{shade}"/>'
                      for x, y in spots]
        elif len(spots) == 1:  # no line to see
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="none" stroke="{shade}" '
                      'stroke-width="2"/>' for x, y in spots]
        for (x, y), label in zip(spots, curve.labels):
            if label:
                at_end = x > _LEFT + _WIDTH - 60
                parts.append(_text(x - 7 if at_end else x + 7, y - 7, label, css="label",
                                   anchor="end" if at_end else "start"))
    parts.append(_legend(names, y0))
    return "".join(parts), _TOP + _HEIGHT + _BOTTOM


def _bars_svg(bars: Bars, y0: float) -> tuple[str, float]:
    y_axis = _axis([v for _, values in bars.series for v in values], False)
    bottom = y0 + _TOP + _HEIGHT
    parts = _frame(bars.title, bars.y_label, y_axis, y0)
    group = _WIDTH / max(1, len(bars.categories))
    width = min(56.0, 0.8 * group / max(1, len(bars.series)))
    for i, category in enumerate(bars.categories):
        middle = _LEFT + group * (i + 0.5)
        parts.append(_text(middle, bottom + 18, category, anchor="middle", css="soft"))
        for j, (_, values) in enumerate(bars.series):
            x = middle + width * (j - len(bars.series) / 2)
            height = _HEIGHT * y_axis.at(max(0.0, values[i]))
            parts.append(f'<rect x="{x + 1:.1f}" y="{bottom - height:.1f}" '
                         f'width="{width - 2:.1f}" height="{height:.1f}" rx="2" '
                         f'fill="{COLOURS[j % len(COLOURS)]}"/>')
            parts.append(_text(x + width / 2, bottom - height - 5, _short(values[i]),
                               anchor="middle"))
    parts.append(_legend([(name, COLOURS[j % len(COLOURS)], False)
                          for j, (name, _) in enumerate(bars.series)], y0))
    return "".join(parts), _TOP + _HEIGHT + _BOTTOM


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _block_map_svg(blocks: BlockMap, y0: float) -> tuple[str, float]:
    columns, size = 60, _WIDTH / 60
    parts = [_text(_LEFT, y0 + 26, blocks.title, css="title")]
    y = y0 + _TOP
    for name, cells in blocks.rows:
        parts.append(_text(_LEFT, y + 10, f"{name} ({len(cells)} blocks)", css="soft"))
        y += 18
        for i, kind in enumerate(cells):
            x, row = _LEFT + size * (i % columns), y + size * (i // columns)
            fill = ' class="empty"' if kind < 0 else f' fill="{COLOURS[kind % len(COLOURS)]}"'
            parts.append(f'<rect x="{x:.1f}" y="{row:.1f}" width="{size - 1:.1f}" '
                         f'height="{size - 1:.1f}"{fill}/>')
        y += size * math.ceil(len(cells) / columns) + 14
    shown = [(kind, COLOURS[i % len(COLOURS)], False)
             for i, kind in enumerate(blocks.kinds[:len(COLOURS)])]
    parts.append(_legend(shown, y0))
    legend = sum(15 * len(_wrapped(kind)) + 5 for kind, _, _ in shown)
    return "".join(parts), max(y - y0, _TOP + legend) + 20
