"""Curves as SVG.

Knows nothing of what the curves say.
"""

import dataclasses
import html
from pathlib import Path

_COLOURS = ("#1b6ca8", "#c9772b", "#5b8c3e", "#8a4f9e", "#b03a48", "#777777")
_WIDTH, _HEIGHT = 480, 320
_LEFT, _TOP, _BOTTOM, _RIGHT = 70, 40, 50, 200


@dataclasses.dataclass(slots=True, frozen=True)
class Curve:
    """Points (x, y), both above 0. A dashed curve takes the colour of the one before it."""

    name: str
    points: list[tuple[float, float]]
    is_dashed: bool = False


@dataclasses.dataclass(slots=True, frozen=True)
class Panel:
    """One diagram with linear axes from 0."""

    title: str
    x_label: str
    curves: list[Curve]


def plot_svg(panels: list[Panel]) -> str:
    """The panels, one below the other."""
    height = _HEIGHT + _TOP + _BOTTOM
    parts = [_panel_svg(panel, index * height) for index, panel in enumerate(panels)]
    width = _LEFT + _WIDTH + _RIGHT
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{height * len(panels)}" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')


def _panel_svg(panel: Panel, y0: int) -> str:
    most_x = max(x for curve in panel.curves for x, _ in curve.points)
    most_y = max(y for curve in panel.curves for _, y in curve.points)

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * x / most_x, y0 + _TOP + _HEIGHT * (1 - y / most_y)

    left, bottom = at(0, 0)
    parts = [(f'<text x="{_LEFT}" y="{y0 + 24}" font-weight="bold">{html.escape(panel.title)}'
             f'</text><text x="{_LEFT + _WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">'
             f'{html.escape(panel.x_label)}</text>'
             f'<path d="M{left} {y0 + _TOP}V{bottom}H{_LEFT + _WIDTH}" fill="none" '
             'stroke="black"/>')]
    for step in range(5):
        x, y = at(most_x * step / 4, most_y * step / 4)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">'
                     f'{most_x * step / 4:g}</text>'
                     f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">'
                     f'{most_y * step / 4:.3g}</text>'
                     f'<path d="M{left} {y}H{_LEFT + _WIDTH}" stroke="#dddddd"/>')
    colour = -1
    for index, curve in enumerate(panel.curves):
        colour += not curve.is_dashed
        shade = _COLOURS[max(colour, 0) % len(_COLOURS)]
        dash = ' stroke-dasharray="5 4"' if curve.is_dashed else ""
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in curve.points)
        y = y0 + _TOP + 16 * index + 8
        parts.append(f'<polyline points="{path}" fill="none" stroke="{shade}" stroke-width="2"'
                     f'{dash}/><path d="M{_LEFT + _WIDTH + 12} {y}h20" stroke="{shade}" '
                     f'stroke-width="2"{dash}/><text x="{_LEFT + _WIDTH + 38}" y="{y + 4}">'
                     f'{html.escape(curve.name)}</text>')
        if not curve.is_dashed:
            for spot in (at(x, y) for x, y in curve.points):
                parts.append(f'<circle cx="{spot[0]:.1f}" cy="{spot[1]:.1f}" r="3" '
                             f'fill="{shade}"/>')
    return "".join(parts)


def write_plot(path: Path, svg: str) -> None:
    """The SVG at `path`."""
    path.with_suffix(".svg").write_text(svg)
