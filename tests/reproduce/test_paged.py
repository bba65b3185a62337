"""`paged`: what each arm reserved, and the figures made of it."""

import math
from pathlib import Path

import pytest

from octavo.bench.plot import BlockMap
from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.claim import NoProgress, Options
from octavo.reproduce.engine_arm import StepSample, greedy_request
from octavo.reproduce.finding import Finding
from octavo.reproduce.paged import (
    QUICK,
    _decode_sentence,
    block_map,
    decode_rates,
    nearest,
    run,
    use_of,
)
from octavo.reproduce.reservation import ReservingKVCacheManager, reserve_max
from tests.reproduce.simulated import section, simulated_arm


def _sample(seconds: float = 1.0, tokens: int = 1, running: int = 1, waiting: int = 0,
            live: int = 10, allocated: int = 16) -> StepSample:
    return StepSample(seconds, tokens, running, waiting, 0, live, allocated)


def test_use_counts_the_steps_in_which_somebody_waits() -> None:
    samples = [_sample(running=4, waiting=1, live=30, allocated=64),
               _sample(running=6, waiting=2, live=50, allocated=96), _sample(running=1, live=1)]
    use = use_of(samples)
    assert (use.live, use.allocated, use.running, use.peak_running) == (40, 80, 5, 6)
    assert use.percent == 50.0
    assert use_of([_sample(live=8)]).percent == 50.0  # nobody ever waited


def test_rates_of_decode_steps_by_their_requests() -> None:
    samples = [_sample(0.5 * n, tokens=n, running=n) for n in (1, 2, 4) for _ in range(6)]
    samples += [_sample(4.0, tokens=4, running=4)] * 3  # an outlier or two
    samples += [_sample(100.0, tokens=50, running=2)] * 9  # a prompt in it
    samples += [_sample(100.0, tokens=7, running=7)] * 4  # too few to trust
    rates = decode_rates(samples)
    assert rates == {1: 2.0, 2: 2.0, 4: 2.0}
    assert nearest(rates, 2.9) == (2, 2.0) and nearest(rates, 99) == (4, 2.0)
    assert math.isnan(nearest({}, 2)[1])


def test_a_disturbed_moment_is_outvoted_by_neighbouring_counts() -> None:
    samples = [_sample(0.01, tokens=2, running=2) for _ in range(20)]
    samples += [_sample(0.02, tokens=n, running=n) for n in (12, 13, 15, 16) for _ in range(5)]
    samples += [_sample(0.2, tokens=14, running=14)] * 5
    assert decode_rates(samples)[14] == pytest.approx(650)  # and not 70


def test_a_cause_is_named_only_where_its_effect_shows() -> None:
    shown = _decode_sentence((2, 587.0), (14, 1314.0))
    assert "(2.24x), because" in shown and "disturbed" not in shown
    noise = _decode_sentence((2, 382.0), (14, 312.0))
    assert "(0.82x): this run was disturbed" in noise and "because" not in noise
    linear = _decode_sentence((2, 100.0), (4, 210.0))
    assert "because" not in linear and "disturbed" not in linear
    assert _decode_sentence((2, math.nan), (4, 2.0)).startswith("Too few steps")
    assert _decode_sentence((4, 2.0), (4, 2.0)).startswith("Too few steps")


@pytest.mark.parametrize("reserving", [False, True])
def test_block_map_tells_tokens_from_reservations(reserving: bool) -> None:
    kv = (ReservingKVCacheManager(section(16), b"", reserve=reserve_max(32)) if reserving
          else KVCacheManager(section(16), b""))
    arm = simulated_arm(kv, max_model_len=32)
    arm.add([greedy_request("a", [1] * 8, 9), greedy_request("b", [2] * 4, 9)])
    arm.step()
    arm.step()  # 9 and 5 tokens in blocks of 4
    cells = block_map(kv, arm)
    if reserving:
        assert cells == [0, 0, 1, 2, 2, 2, 2, 2, 0, 1, 2, 2, 2, 2, 2, 2]
    else:
        assert sorted(cells) == [-1] * 11 + [0, 0, 0, 1, 1]


@pytest.fixture(scope="module")
def finding(tiny_folder: Path) -> Finding:
    return run(Options(model=str(tiny_folder), quick=True), NoProgress())


def test_every_arm_reserves_as_it_says(finding: Finding) -> None:
    rows = {row[0]: row for row in finding.tables[0].rows}
    column = {name: finding.tables[0].headers.index(name)
              for name in ("% of allocated", "% of all", "running", "peak", "recomputed")}

    def cell(arm: str, name: str) -> float:
        value = rows[arm][column[name]]
        assert isinstance(value, int | float)
        return value

    most = QUICK.num_slots // QUICK.max_model_len
    assert cell("contiguous, max", "peak") == most
    names = ["contiguous, max", "contiguous, pow2", "contiguous, oracle", "paged, block 16"]
    assert list(rows) == names
    for figure in ("% of allocated", "% of all", "running"):
        values = [cell(name, figure) for name in names]
        assert values == sorted(values) and values[-1] > 2 * values[0], figure
    for name in names:  # a reservation is never taken back
        lost = cell(name, "recomputed")
        assert (finding.facts[f"preemptions, {name}"] == 0) == (lost == 0), name
        assert lost == 0 or name == names[-1]
    assert finding.identical_outputs


def test_smaller_blocks_waste_less(finding: Finding) -> None:
    table = finding.tables[3]
    use = [row[table.headers.index("% of allocated")] for row in table.rows]
    assert [row[0] for row in table.rows] == ["1", "2", "4", "8", "16", "32", "64", "128", "256"]
    assert use[0] == 100.0 and use == sorted(use, reverse=True)
    measured = {row[0] for row in table.rows if row[-1] is not None}
    assert measured == {str(size) for size in QUICK.measured_blocks}


def test_the_map_shows_every_arm(finding: Finding) -> None:
    (blocks,) = [d for d in finding.diagrams if isinstance(d, BlockMap)]
    assert len(blocks.rows) == 4
    assert all(len(cells) == QUICK.num_slots // 16 for _, cells in blocks.rows)
    reserved = {name: cells.count(2) for name, cells in blocks.rows}
    assert reserved["contiguous, max"] > QUICK.num_slots // 16 // 2
    assert reserved["paged, block 16"] == 0


@pytest.mark.full
def test_the_claim_on_the_real_model(model_path: Path) -> None:
    found = run(Options(model=str(model_path)), NoProgress())
    by_name = {figure.what: figure for figure in found.figures}
    for what in ("use of allocated KV memory, paged",
                 "use of allocated KV memory, contiguous, max",
                 "requests at once, paged over contiguous, max"):
        assert by_name[what].is_reached, by_name[what]
