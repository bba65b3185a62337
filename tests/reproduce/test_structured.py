"""`structured`: forced tokens take no step, and both arms draw the same."""

from pathlib import Path

import pytest

from octavo.reproduce.claim import NoProgress, Options
from octavo.reproduce.finding import Finding
from octavo.reproduce.structured import QUICK, SCHEMAS, run


@pytest.fixture(scope="module")
def finding(model_path: Path) -> Finding:
    return run(Options(model=str(model_path), quick=True), NoProgress())


def test_forced_tokens_take_no_step(finding: Finding) -> None:
    assert finding.identical_outputs
    (jump,), (steps,) = finding.raw["single"].values()
    assert jump["tokens"] == steps["tokens"] > 20 * len(SCHEMAS) * QUICK.objects
    assert steps["jumped"] == 0 < 0.3 * jump["tokens"] < jump["jumped"]
    # a prompt's last chunk draws the first token
    assert steps["steps"] == steps["tokens"]
    assert jump["steps"] == jump["tokens"] - jump["jumped"]


def test_masks_are_priced_over_the_same_lengths(finding: Finding) -> None:
    masked, free = finding.raw["batched"].values()
    assert masked[0]["tokens"] == free[0]["tokens"] > 0
    assert masked[0]["jumped"] == free[0]["jumped"] == 0


@pytest.mark.full
def test_the_claim_on_the_real_model(model_path: Path) -> None:
    found = run(Options(model=str(model_path)), NoProgress())
    assert found.identical_outputs
    assert found.figures[0].value >= 1.5
