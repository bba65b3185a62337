"""The comparison: Octavo's worker over its pipes, a server as peer, the report."""

import json
from pathlib import Path

import pytest

from benchmarks.compare.__main__ import main
from benchmarks.compare.cases import Case
from benchmarks.compare.report import QUIET_LOAD, chart_svg, rows_of, table_text
from benchmarks.compare.runner import Outcome, Series
from octavo.testing.fake_async_llm import fake_async_llm
from octavo.testing.toy_model import tiny_llama
from tests.server.conftest import serving


def test_a_run_with_a_server_and_a_missing_peer(tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_llama().save(tmp_path / "tiny")
    out = tmp_path / "compare.json"
    with serving(fake_async_llm(max_model_len=4096, num_blocks=1024, step_s=0.01)) as server:
        assert main(["--model", str(model), "--peers", f"url={server.base_url},llama-cpp-python",
                     "--venvs", str(tmp_path / "none"), "--tests", "smoke", "-r", "1",
                     "--threads", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "missing: llama-cpp-python: not installed" in text and "no PNG" in text
    data = json.loads(out.read_text())
    assert [row["test"] for row in data["rows"]] == ["pp64", "tg8@32", "tg8x4@16"]
    for row in data["rows"]:
        assert row["errors"] == {}
        assert set(row["medians"]) == {"octavo", f"url={server.base_url}"}
        assert all(rate > 0 for rate in row["medians"].values()) and row["ratio"] > 0
    assert all("error" not in load for load in data["loads"])
    assert out.with_suffix(".svg").read_text().startswith("<svg")


def test_a_worker_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF")
    assert main(["--model", str(model), "--peers", "nonsense", "--tests", "smoke", "-r", "1",
                 "--threads", "1", "--out", str(tmp_path / "o.json")]) == 0
    text = capsys.readouterr().out
    assert "missing: nonsense: unknown" in text and "failed: octavo" in text


def test_ratios_are_of_medians_against_the_best_peer() -> None:
    case = Case("tg", 8, 1, 32)
    outcome = Outcome(missing=["x: not installed"], load_before=QUIET_LOAD + 1, series=[
        Series("octavo", "/m/a.gguf", case, [100.0, 300.0, 120.0]),
        Series("octavo", "/m/b.gguf", case, [90.0]),
        Series("slow", "/m/a.gguf", case, [30.0, 10.0]),
        Series("slow", "/m/b.gguf", case, [80.0]),
        Series("broken", "/m/a.gguf", case, error="cannot <read> it"),
    ])
    first, second = rows_of(outcome)
    assert first.medians == {"octavo": 120.0, "slow": 20.0}
    assert (first.ratio, first.ratio_any) == (6.0, 1.5)
    assert second.ratio == second.ratio_any == pytest.approx(90 / 80)
    text = table_text(outcome)
    assert "| 6.00x | 1.50x |" in text and "failed: broken" in text and "busy machine" in text
    assert "missing: x: not installed" in text
    assert "slow" in chart_svg(outcome)


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "x", "--tests", "nonsense"]) == 2
    assert main(["install", "nonsense"]) == 2
    with pytest.raises(SystemExit):
        main([])
    assert "unknown test nonsense" in capsys.readouterr().err
