"""Finding: what came of measuring a claim, as values. Tables, figures, diagrams, facts, words.

Measures nothing and prints nothing.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from octavo.bench.plot import Diagram

Cell = str | int | float | None


@dataclasses.dataclass(slots=True, frozen=True)
class Table:
    """Rows of cells under headers; the first column names the row. None: no figure."""

    title: str
    headers: list[str]
    rows: list[list[Cell]]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headers) for row in self.rows), self.title


@dataclasses.dataclass(slots=True, frozen=True)
class Figure:
    """A measured value of the claim. target: what is expected, None where nothing is;
    at_least: the value shall be that or more, else that or less."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = True

    @property
    def is_reached(self) -> bool | None:
        """None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclasses.dataclass(slots=True, frozen=True)
class Finding:
    """A claim beside its measurement.

    claimed: what the paper says, in a sentence. source: the paper. explanation: why measured and
    claimed differ (or why they agree), from measured facts. facts: settings, and the counters that
    prove what each arm did. identical_outputs: whether all arms gave the same token ids, None
    where arms are not meant to. raw: samples for further use, JSON values only.
    """

    name: str
    title: str
    claimed: str
    source: str
    figures: list[Figure]
    tables: list[Table]
    diagrams: list[Diagram]
    explanation: str
    facts: dict[str, Cell] = dataclasses.field(default_factory=dict)
    identical_outputs: bool | None = None
    raw: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Whether every figure that has a target reached it."""
        return all(figure.is_reached is not False for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values; what is no number is null."""
        data = dataclasses.asdict(self)
        for figure, plain in zip(self.figures, data["figures"]):
            plain["is_reached"] = figure.is_reached
        for diagram, plain in zip(self.diagrams, data["diagrams"]):
            plain["kind"] = type(diagram).__name__
        return {"format": "octavo-reproduce/1", "is_reached": self.is_reached,
                **{name: _plain(value) for name, value in data.items()}}


def number(value: Cell) -> str:
    """A figure with about three digits; other cells as they are."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
