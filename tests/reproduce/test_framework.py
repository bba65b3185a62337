"""What every claim shares: turns, the driver's clock and places, findings, files, the command."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.bench.plot import Bars
from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.reproduce.arms import alternate, keep_pace, take_turns
from octavo.reproduce.claim import Claim, Engine, NoProgress, Options, Progress, open_engines
from octavo.reproduce.claims import CLAIMS, claim_named
from octavo.reproduce.driver import Arrival, CoreDriver, StaticBatch
from octavo.reproduce.finding import Figure, Finding, Table, number
from octavo.reproduce.output import run_claim, write_finding

# outputs of very different length, more requests than places
OUTPUTS = (3, 20, 5, 9, 2, 12)
SLOTS = 2


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with open_engines(Options(model=str(tiny_folder)).engine()) as engines:
        yield engines[0]


def arrivals(due_s: float = 0.0) -> list[Arrival]:
    return [Arrival([10 + i, 20, 30 + i], n, due_s=i * due_s) for i, n in enumerate(OUTPUTS)]


def finished(engine: Engine, name: str, static: StaticBatch | None = None,
             due_s: float = 0.0) -> CoreDriver:
    driver = CoreDriver(engine.core, arrivals(due_s), name=name, static=static, slots=SLOTS)
    while not driver.is_done:
        driver.run_for(0.001)
    assert not engine.core.has_requests and driver.share_done == 1
    return driver


def test_whole_runs_alternate() -> None:
    order: list[str] = []
    found = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(runs) for name, runs in found.items()} == {"a": 3, "b": 3}


def test_arms_take_turns_until_all_are_done() -> None:
    log: list[str] = []

    class Arm:
        def __init__(self, name: str, slices: int) -> None:
            self.name, self.left = name, slices

        @property
        def is_done(self) -> bool:
            return not self.left

        def run_for(self, seconds: float) -> None:
            assert self.left and seconds == 0.25
            self.left -= 1
            log.append(self.name)

    take_turns([Arm("a", 2), Arm("b", 4)], slice_s=0.25, after_round=lambda: log.append("-"))
    assert "".join(log) == "ab-ba-b-b-"


def test_arms_keep_pace() -> None:
    log: list[str] = []

    class Arm:
        def __init__(self, name: str, stride: float) -> None:
            self.name, self.stride, self.share_done = name, stride, 0.0

        @property
        def is_done(self) -> bool:
            return self.share_done >= 1

        def run_for(self, seconds: float) -> None:
            self.share_done += self.stride
            log.append(self.name)

    keep_pace([Arm("a", 0.5), Arm("b", 0.25)], slice_s=1.0)
    assert "".join(log) == "abbabb"


def test_each_way_of_batching_does_what_it_says(engine: Engine) -> None:
    iteration = finished(engine, "iteration")
    free = finished(engine, "free", StaticBatch(SLOTS, computes_finished=False))
    padded = finished(engine, "padded", StaticBatch(SLOTS, computes_finished=True))
    assert iteration.outputs == free.outputs == padded.outputs
    assert [len(ids) for ids in padded.outputs] == list(OUTPUTS)
    wanted = sum(OUTPUTS)
    assert sum(step.num_wanted for step in padded.steps) == wanted
    assert sum(step.num_rows for step in iteration.steps) == wanted
    assert sum(step.num_rows for step in free.steps) == wanted
    # batches (3, 20) (5, 9) (2, 12): each as long as its longest, all places computed
    assert sum(step.num_rows for step in padded.steps) == SLOTS * (20 + 9 + 12)
    assert len(free.steps) == len(padded.steps) == 20 + 9 + 12
    assert sum(step.num_held - step.num_useful for step in free.steps) == 17 + 4 + 10
    assert all(step.num_held == step.num_useful for step in iteration.steps)
    assert all(step.num_held == SLOTS for step in iteration.steps if step.num_waiting)


def test_padded_answers_come_with_the_batch(engine: Engine) -> None:
    free = finished(engine, "free2", StaticBatch(SLOTS, computes_finished=False))
    padded = finished(engine, "padded2", StaticBatch(SLOTS, computes_finished=True))
    assert padded.served[0].end_s == padded.served[1].end_s == padded.served[1].times_s[-1]
    assert free.served[0].end_s == free.served[0].times_s[-1] < free.served[1].end_s


def test_the_clock_skips_idle_time_and_counts_waiting(engine: Engine) -> None:
    driver = finished(engine, "late", due_s=1000.0)
    assert driver.clock_s > 5000 and sum(step.seconds for step in driver.steps) < 100
    assert [one.due_s for one in driver.served] == [i * 1000.0 for i in range(len(OUTPUTS))]
    assert all(one.latency_s < 100 and one.ttft_s > 0 for one in driver.served)
    assert all(step.num_waiting == 0 for step in driver.steps)


def test_an_arrival_may_wait_for_progress(engine: Engine) -> None:
    driver = CoreDriver(engine.core, [Arrival([1, 2], 10), Arrival([3, 4], 2, after_tokens=6)],
                        name="progress")
    driver.run_for(math.inf)
    assert driver.served[1].due_s == driver.served[0].times_s[5]
    assert driver.served[1].times_s[0] == driver.served[0].times_s[6]
    with pytest.raises(AssertionError, match="never comes"):
        CoreDriver(engine.core, [Arrival([1], 2), Arrival([1], 2, after_tokens=3)])


def finding(value: float = 2.5) -> Finding:
    return Finding(
        "demo", "a title", "Something is faster", "Somebody, 2020",
        [Figure("ratio", value, "x", 2.0), Figure("cost", math.nan, "%"),
         Figure("low", 3.0, "%", 5.0, at_least=False)],
        [Table("t", ["arm", "tok/s"], [["a [b]", 1234.5], ["b", None]])],
        [Bars("b", "y", ["c"], [("s", [1.0])])], "Because.", {"threads": 2}, True)


def test_a_finding_is_json_with_its_verdict(tmp_path: Path) -> None:
    paths = write_finding(finding(), folder=tmp_path / "new", json_file=tmp_path / "x.json")
    assert [p.name for p in paths] == ["demo.json", "demo.svg", "x.json"]
    data = json.loads(paths[0].read_text())
    assert data["is_reached"] is True and data["format"] == "octavo-reproduce/1"
    assert [f["is_reached"] for f in data["figures"]] == [True, None, True]
    assert data["figures"][1]["value"] is None  # no number
    assert data["diagrams"][0]["kind"] == "Bars"
    assert not finding(1.9).is_reached
    with pytest.raises(ConfigError, match="cannot be written"):
        write_finding(finding(), folder=None, json_file=tmp_path)


def test_figures_are_short() -> None:
    cells = (1234.5, 123.4, 12.345, 0.012345, 12345, "x", None)
    assert list(map(number, cells)) == ["1,234", "123", "12.3", "0.0123", "12,345", "x", "-"]


def test_the_command_lists_and_runs(tmp_path: Path, tiny_folder: Path,
                                    capsys: pytest.CaptureFixture[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["reproduce"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in CLAIMS)
    seen: list[Options] = []

    def run(options: Options, progress: Progress) -> Finding:
        seen.append(options)
        progress.stage("s", 0.0)
        progress.advance(0.5)
        progress.check()
        return finding()

    monkeypatch.setitem(CLAIMS, "demo", Claim("demo", "a title", run))
    arguments = ["reproduce", "demo", "--quick", "--model", str(tiny_folder), "--threads", "2",
                 "--out", str(tmp_path)]
    assert main(arguments) == 0
    printed, told = capsys.readouterr()
    assert told == "demo: s (0% done)\n"  # no terminal: a line a stage
    assert seen == [Options(model=str(tiny_folder), quick=True, num_threads=2)]
    for expected in ("a [b]", "1,234", ">= 2 x", "reached", "Something is faster", "Because.",
                     "the same token ids", "demo.svg", "sizes quick", "threads 2"):
        assert expected in printed, expected
    facts = json.loads((tmp_path / "demo.json").read_text())["facts"]
    assert facts["threads"] == 2 and facts["seed"] == 0 and facts["seconds"] >= 0


def test_an_unknown_claim_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "nothing"]) == 1
    error = capsys.readouterr().err
    assert "'nothing' is not a claim" in error and "orca" in error and ", report" in error
    with pytest.raises(ConfigError):
        claim_named("nothing")


def test_a_place_that_cannot_be_written_is_refused_first(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for flag in ("--out", "--json"):
        place = tmp_path / "file" / "x.json"
        assert main(["reproduce", "orca", "--model", "none", "--out", str(tmp_path / "out"),
                     flag, str(place)]) == 1
        assert f"{flag} is '{tmp_path}/file" in capsys.readouterr().err
    place = tmp_path / "nowhere" / "x.json"
    assert main(["reproduce", "orca", "--model", "none", "--json", str(place),
                 "--out", str(tmp_path / "out")]) == 1
    assert f"there is no folder '{place.parent}'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing is made


def test_an_input_is_looked_at_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, out = str(tmp_path / "none"), str(tmp_path / "out")
    for name, flag, value in (("orca", "--trace", missing), ("paged", "--trace", missing),
                              ("radix", "--data", missing),
                              ("invariance", "--url", "http://127.0.0.1:9")):
        # the model is not there either: the input is named before it is looked for
        assert main(["reproduce", name, flag, value, "--model", "none", "--out", out]) == 1
        assert value in capsys.readouterr().err
    assert not Path(out).exists()


def test_ctrl_c_leaves_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: Options, progress: Progress) -> Finding:
        raise KeyboardInterrupt

    monkeypatch.setitem(CLAIMS, "demo", Claim("demo", "t", run))
    main(["reproduce", "demo", "--out", str(tmp_path / "new" / "out")])
    assert list(tmp_path.iterdir()) == []


def test_an_option_without_a_use_is_refused(tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "chunked", "--trace", "x.csv", "--out", str(tmp_path)]) == 1
    assert "--trace is 'x.csv': the claim chunked has no use for it" in capsys.readouterr().err


def test_ctrl_c_ends_a_claim_between_steps() -> None:
    import os
    import signal

    steps: list[int] = []

    def run(options: Options, progress: Progress) -> Finding:
        for i in range(3):
            progress.check()
            steps.append(i)
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("went on")

    with pytest.raises(KeyboardInterrupt):
        run_claim(Claim("demo", "t", run), Options(model="m"))
    assert steps == [0]
    NoProgress().check()
