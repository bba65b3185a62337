"""`octavo eval ppl`: figures of the engine's own arithmetic, and one line for every mistake."""

import json
import math
from pathlib import Path

import pytest

from octavo.cli.main import main

TEXT = Path(__file__).parent.parent / "data" / "frankenstein_excerpt.txt"


def test_ppl(model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    base = ["eval", "ppl", str(model_path), "--text", str(TEXT), "--window", "250",
            "--max-windows", "2"]
    assert main([*base, "--json"]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert captured.err == ""
    assert (facts["num_windows"], facts["num_scored"], facts["window"]) == (2, 250, 250)
    assert 2.0 < facts["mean_nll"] < 4.5 and 0 < facts["standard_error"] < 0.4
    assert facts["perplexity"] == pytest.approx(math.exp(facts["mean_nll"]))
    assert (facts["backend"], facts["kv_cache_dtype"]) == ("cpu", "int8")
    out = tmp_path / "ppl.json"
    assert main([*base, "--kv-cache-dtype", "bf16", "--json", str(out)]) == 0
    line = capsys.readouterr().out
    other = json.loads(out.read_text())
    assert other["mean_nll"] == pytest.approx(facts["mean_nll"], rel=0.01)
    assert other["mean_nll"] != facts["mean_nll"]
    assert line.startswith(f"perplexity {other['perplexity']:.4f}, ") and "KV bf16" in line


@pytest.mark.parametrize(("arguments", "says"), [
    (["--text", "/nowhere.txt"], "--text '/nowhere.txt': No such file or directory"),
    (["--text", "/"], "--text '/': is a folder; give a text file"),
    (["--text", "BINARY"], "is not UTF-8"),
    (["--text", "SHORT"], "--window is 2048, and the text has 2 tokens"),
    (["--text", "SHORT", "--window", "99999"], "--window is 99999: give 2 to 8192"),
    (["--text", "SHORT", "--window", "1"], "--window is 1: give 2 to 8192"),
])
def test_mistakes_are_one_line(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str],
    says: str,
) -> None:
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "SHORT").write_text("Hello there")
    known = {name: str(tmp_path / name) for name in ("BINARY", "SHORT")}
    command = ["eval", "ppl", str(model_path), *(known.get(a, a) for a in arguments)]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("octavo: error: ") and says in captured.err
