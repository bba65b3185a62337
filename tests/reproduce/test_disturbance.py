"""What tells that others took cores: ticks, own time, the sentence."""

import pytest

from octavo.reproduce import disturbance as module
from octavo.reproduce import output
from octavo.reproduce.claim import Claim, Options, Progress
from octavo.reproduce.disturbance import CoreWatch, busy_of, disturbance
from octavo.reproduce.finding import Finding

_STAT = """cpu  100 100 100 900 100 100 100 100 100 100
cpu0 1 2 4 1000 1000 8 16 32 5000 5000
cpu1 64 0 0 9 9 0 0 0 0 0
cpu12 7 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


def test_busy_ticks_are_those_of_our_cores() -> None:
    assert busy_of(_STAT, {0}) == 1 + 2 + 4 + 8 + 16 + 32
    assert busy_of(_STAT, {0, 1}) == 63 + 64
    assert busy_of(_STAT, {2}) == 0


def test_our_own_time_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([100.0, 110.0])
    own = iter([5.0, 15.0])
    busy = iter([1000.0, 1015.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clocks))
    monkeypatch.setattr(module, "own_cpu_seconds", lambda: next(own))
    monkeypatch.setattr(module, "busy_seconds", lambda: next(busy))
    watch = CoreWatch()
    assert not watch.has_own_load
    assert watch.taken_by_others() == 0.5
    monkeypatch.setattr(module, "busy_seconds", lambda: None)
    monkeypatch.setattr(module, "own_cpu_seconds", lambda: 60.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)
    blind = CoreWatch()
    assert blind.taken_by_others() is None and blind.has_own_load


def test_the_sentence_names_what_was_seen() -> None:
    assert disturbance(taken=0.1, load=0.9) is None and disturbance(taken=None, load=None) is None
    both = disturbance(taken=0.94, load=3.27)
    assert both is not None and both.startswith("This run was disturbed (")
    assert "was 3.3 and" in both and "took 0.9 cores" in both
    loaded, taken = disturbance(taken=None, load=1.8), disturbance(taken=0.5, load=0.2)
    assert loaded is not None and "1.8" in loaded and "processes" not in loaded
    assert taken is not None and "0.5" in taken and "load" not in taken


@pytest.mark.parametrize("load", [0.3, 4.0])
def test_any_claim_says_it(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    def run(options: Options, progress: Progress) -> Finding:
        return Finding("d", "t", "c", "s", [], [], [], "Because.")

    monkeypatch.setattr(output, "load_average", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(module, "busy_seconds", lambda: 1.0)
    monkeypatch.setattr(module, "own_cpu_seconds", lambda: 1.0)
    found = output.run_claim(Claim("d", "t", run), Options(model="m"))
    assert found.explanation.startswith("Because.")
    assert ("This run was disturbed" in found.explanation) == (load > 1)
    assert found.facts["cores taken by others"] == 0
