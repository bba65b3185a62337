"""`cow`: blocks by arithmetic, counters of both arms."""

from pathlib import Path

import pytest

from octavo.reproduce.claim import NoProgress, Options
from octavo.reproduce.cow import FULL, QUICK, Shape, Sizes, measure, most_blocks, run
from octavo.reproduce.finding import Finding


@pytest.mark.parametrize("prompt, output, n, shared, apart", [
    (19, 16, 8, 1 + 8 * 2, 8 * 3),  # one whole block in common
    (16, 16, 4, 4 * 2, 4 * 2),  # the prompt's last token is everybody's own
    (17, 16, 4, 1 + 4 * 1, 4 * 2),
    (15, 2, 4, 4, 4),  # the last token drawn takes no slot
])  # fmt: skip
def test_blocks_by_arithmetic(prompt: int, output: int, n: int, shared: int, apart: int) -> None:
    shape = Shape("", prompt, output)
    assert most_blocks(shape, n, is_shared=True) == shared
    assert most_blocks(shape, n, is_shared=False) == apart


@pytest.fixture(scope="module")
def finding(tiny_folder: Path) -> Finding:
    return run(Options(model=str(tiny_folder), quick=True), NoProgress())


def test_samples_share_and_copy_and_draw_the_same(finding: Finding) -> None:
    assert finding.identical_outputs and len(finding.tables) == len(QUICK.shapes)
    for shape, table in zip(QUICK.shapes, finding.tables, strict=True):
        assert [int(str(row[0])) for row in table.rows] == list(QUICK.counts)
        for row in table.rows:
            n = int(str(row[0]))
            cells = dict(zip(table.headers[:5], row, strict=False))
            assert cells["blocks"] == most_blocks(shape, n, is_shared=False)
            assert cells["shared"] == most_blocks(shape, n, is_shared=True)
            # 161 = 10 blocks and a token: samples compute that, only one writes beside others
            assert cells["copies"] == (1 if shape.prompt % 16 == 1 else n - 1)


def test_a_prompt_within_one_block_shares_nothing(tiny_folder: Path) -> None:
    sizes = Sizes((Shape("12 + 10", 12, 10),), (3,), 1)
    (pair,) = measure(Options(model=str(tiny_folder)), sizes, NoProgress()).raw["pairs"]
    assert pair["shared_blocks"] == pair["apart_blocks"] == 6 and pair["copies"] == 2


@pytest.mark.full
def test_the_claim_on_the_real_model(model_path: Path) -> None:
    found = run(Options(model=str(model_path)), NoProgress())
    assert found.identical_outputs
    for pair in found.raw["pairs"]:
        (shape,) = (shape for shape in FULL.shapes if shape.name == pair["shape"])
        assert pair["shared_blocks"] <= most_blocks(shape, pair["n"], is_shared=True)
        assert pair["shared_blocks"] < pair["apart_blocks"]
    long_prompts = [pair for pair in found.raw["pairs"] if pair["shape"] == "512 + 64"]
    assert all(pair["shared_tok_s"] > 1.2 * pair["apart_tok_s"] for pair in long_prompts[1:])
