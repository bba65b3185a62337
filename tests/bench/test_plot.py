"""Diagrams: axes that hold their values, every kind of diagram, well-formed SVG."""

from xml.etree import ElementTree

import pytest

from octavo.bench.plot import Bars, BlockMap, Curve, Diagram, Panel, plot_svg

_SVG = "{http://www.w3.org/2000/svg}"


def parsed(*diagrams: Diagram) -> ElementTree.Element:
    return ElementTree.fromstring(plot_svg(diagrams))


def texts(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{_SVG}text")]


def test_a_panel_scales_to_round_values_and_escapes_names() -> None:
    root = parsed(Panel("a < b", "x", [Curve("c", [(1.0, 5.0), (2.0, 10.0)])], "y"))
    (line,) = root.iter(f"{_SVG}polyline")
    assert line.get("points") == "316.0,194.0 556.0,44.0"  # 2 and 10 are the ends of the axes
    assert {"a < b", "x", "y", "c", "0", "2", "10"} <= set(texts(root))


@pytest.mark.parametrize(("values", "first", "last"), [
    ([0.011, 3.0], "0.01", "5"), ([1.0, 1.0], "1", "2"),
    ([1e-9, 1e9], "1e-09", "1e+09"), ([0.2, 90_000.0], "1", "100000")])
def test_a_logarithmic_axis_holds_its_values(values: list[float], first: str, last: str) -> None:
    root = parsed(Panel("t", "x", [Curve("c", [(1.0, v) for v in values])], is_log_y=True))
    heights = [float(node.get("cy", "nan")) for node in root.iter(f"{_SVG}circle")]
    assert all(44.0 <= y <= 344.0 for y in heights)
    assert {first, last} <= set(texts(root))


def test_an_axis_may_begin_near_its_values() -> None:
    root = parsed(Panel("t", "x", [Curve("c", [(1010.0, 1.0), (1090.0, 2.0)], labels=["p", ""],
                                         has_line=False)], x_from_0=False))
    xs = [float(node.get("cx", "nan")) for node in root.iter(f"{_SVG}circle")]
    assert xs[1] - xs[0] > 240 and not list(root.iter(f"{_SVG}polyline"))
    assert "p" in texts(root) and "1000" in texts(root)


def test_bars_are_as_high_as_their_values() -> None:
    root = parsed(Bars("t", "y", ["one", "two"], [("a", [5.0, 10.0]), ("b", [0.0, 2.5])]))
    heights = [float(node.get("height", "nan")) for node in root.iter(f"{_SVG}rect")
               if node.get("rx")]
    assert heights == [150.0, 0.0, 300.0, 75.0]
    assert {"one", "two", "a", "b", "2.5"} <= set(texts(root))


def test_a_block_map_has_a_square_for_each_block() -> None:
    root = parsed(BlockMap("t", ["r0", "r1"], [("pool", [0, 1, -1] * 30), ("other", [1])]))
    squares = [node for node in root.iter(f"{_SVG}rect") if node.get("width") == "7.0"]
    assert len(squares) == 91
    assert sum(node.get("class") == "empty" for node in squares) == 30
    assert "pool (90 blocks)" in texts(root)


def test_diagrams_without_values_are_drawn_too() -> None:
    parsed(Panel("t", "x", [Curve("c", [(5.0, 0.0)])], x_from_0=False))
    parsed(Panel("t", "x", []), Panel("t", "x", [], is_log_x=True))
    parsed(Bars("t", "y", [], []), BlockMap("t", [], []))
