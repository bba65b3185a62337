"""Claim orca: each arm schedules as it says, all give the same tokens, lengths are a trace's."""

import json
import math
import statistics
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.reproduce import orca
from octavo.reproduce.claim import NoProgress, Options
from octavo.reproduce.driver import StepRecord
from octavo.reproduce.finding import Finding
from octavo.reproduce.lengths import Lengths, cut, production_lengths, scaled

SIZES = orca.Sizes(slots=3, num_saturated=12, num_at_rate=5, rates=(0.5,), full_slots=2, num_full=6,
                   scale=0.05)


@pytest.fixture(scope="module")
def found(tiny_folder: Path) -> Finding:
    return orca.measure(Options(model=str(tiny_folder)), SIZES, NoProgress())


def test_all_arms_give_the_same_tokens(found: Finding) -> None:
    assert found.identical_outputs is True
    assert all(load["is_identical"] for load in found.raw["loads"])


def test_each_arm_computes_what_it_says(found: Finding) -> None:
    saturated = found.raw["loads"][0]
    iteration, free, padded = saturated["arms"]
    assert iteration["num_rows"] == free["num_rows"] == iteration["num_wanted"]
    assert padded["num_rows"] > 1.3 * padded["num_wanted"]
    assert iteration["num_wanted"] == free["num_wanted"] == padded["num_wanted"]
    assert iteration["num_steps"] < free["num_steps"]
    assert iteration["wasted"] == 0 and 0.2 < free["wasted"] < 0.8
    assert found.facts["rows computed, static, rows computed"] == padded["num_rows"]


def test_a_rate_is_half_of_saturation(found: Finding) -> None:
    first, rated, full = found.raw["loads"]
    mean_output = first["arms"][0]["num_wanted"] / SIZES.num_saturated
    assert rated["rate"] == pytest.approx(
        0.5 * first["arms"][0]["tokens_per_s"] / mean_output)
    assert math.isinf(first["rate"]) and math.isinf(full["rate"])


def test_the_finding_says_both_sides(found: Finding) -> None:
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert "36.9" in data["claimed"] and "OSDI 2022" in data["source"]
    assert data["figures"][0]["target"] == 2.0
    assert len(data["tables"]) == 4 and len(data["diagrams"]) == 4
    assert "rows for each token" in data["explanation"]


def test_places_are_counted_and_costs_grouped_by_rows() -> None:
    def step(rows: int, seconds: float, prompt: int = 0) -> StepRecord:
        return StepRecord(0.0, seconds, rows, rows, rows, 0, rows + prompt, prompt, rows)

    steps = [step(1, 0.1), step(1, 0.3), step(1, 0.2), step(15, 1.0), step(17, 2.0),
             step(4, 9.0, prompt=5)]
    assert orca.step_costs(steps) == [(1, 0.2), (16, 1.5)]


def test_built_in_lengths_have_the_shape_of_the_trace() -> None:
    lengths, source = production_lengths(Options(model="m"), 500)
    outputs = [one.output for one in lengths]
    assert statistics.fmean(outputs) == pytest.approx(211, rel=0.03)
    assert statistics.median(outputs) == pytest.approx(129, rel=0.03)
    assert statistics.fmean(one.prompt for one in lengths) == pytest.approx(1155, rel=0.05)
    assert "Azure" in source
    assert lengths == production_lengths(Options(model="m"), 500)[0]
    assert lengths != production_lengths(Options(model="m", seed=1), 500)[0]


def test_lengths_of_a_trace_are_taken_in_order(tmp_path: Path, tiny_folder: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:{i:02}.0,{100 + i},{20 + 10 * (i % 3)}\n" for i in range(12)))
    lengths, source = production_lengths(Options(model="m", trace=trace), 5)
    assert lengths == [Lengths(100 + i, 20 + 10 * (i % 3)) for i in range(5)]
    assert source == "the first 5 requests of trace.csv"
    sizes = orca.Sizes(slots=3, num_saturated=12, num_at_rate=4, rates=(), full_slots=2, num_full=6)
    found = orca.measure(Options(model=str(tiny_folder), trace=trace), sizes, NoProgress())
    saturated, full = (load["arms"][0] for load in found.raw["loads"])
    assert saturated["num_wanted"] == 4 * (20 + 30 + 40) and full["num_wanted"] == 2 * 90
    assert found.facts["full lengths times"] == 1.0
    with pytest.raises(ConfigError, match="cannot be read"):
        production_lengths(Options(model="m", trace=tmp_path / "none.csv"), 5)


def test_lengths_are_cut_and_scaled() -> None:
    lengths = [Lengths(1000, 100), Lengths(50, 10)]
    assert cut(lengths, prompt=64, output=80) == [Lengths(64, 80), Lengths(50, 10)]
    assert scaled(lengths, 550) == ([Lengths(500, 50), Lengths(25, 5)], 0.5)
    assert scaled(lengths, 5000) == (lengths, 1.0)


@pytest.mark.full
def test_the_claim_holds(model_path: Path) -> None:
    found = orca.run(Options(model=str(model_path)), NoProgress())
    assert found.identical_outputs is True
    assert found.is_reached, [(f.what, f.value) for f in found.figures]
