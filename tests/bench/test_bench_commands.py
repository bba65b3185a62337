"""`octavo bench` from its arguments to its reports, on a tiny model and a scripted server."""

import json
import os
from pathlib import Path

import pytest

from octavo.bench.engine_bench import Case, EngineBench, run_cases
from octavo.cli.main import main
from octavo.config_resolve import EngineArgs
from octavo.engine.factory import resolve_args
from octavo.errors import ConfigError
from octavo.testing.fake_async_llm import fake_async_llm
from octavo.testing.toy_model import tiny_llama
from tests.server.conftest import serving


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer random model over bytes."""
    return tiny_llama().save(tmp_path_factory.mktemp("models") / "tiny")


def test_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.json"
    assert main(["bench", "machine", "--samples", "1", "--footprints", "1", "--num-threads", "1",
                 "--json", str(path)]) == 0
    out = capsys.readouterr().out
    for part in ("dot products", "memory reads", "1 MB", "f32"):
        assert part in out
    assert json.loads(path.read_text())["format"] == "octavo-machine/1"


def test_engine(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, path = tmp_path / "machine.json", tmp_path / "engine.json"
    main(["bench", "machine", "--samples", "1", "--footprints", "1", "--num-threads", "1",
          "--json", str(machine)])
    assert main(["bench", "engine", "-m", str(tiny_folder), "-p", "40", "-n", "4", "-b", "1,3",
                 "-d", "1,20", "-r", "2", "--machine", str(machine), "--json", str(path),
                 "--num-threads", "1"]) == 0
    out = capsys.readouterr().out
    data = json.loads(path.read_text())
    names = [test["test"] for test in data["tests"]]
    assert names == ["pp40", "tg4", "tg4xb3", "tg4@d20", "tg4xb3@d20"]
    for name in names:
        assert name in out
    for test in data["tests"]:
        assert len(test["samples"]) == 2 and test["tokens_per_s"]["median"] > 0
        assert test["roofline_tokens_per_s"] > 0 and test["limit"] in ("memory", "compute")
        assert test["percent_of_roofline"] == pytest.approx(
            100 * test["tokens_per_s"]["median"] / test["roofline_tokens_per_s"])
    assert data["machine"]["format"] == "octavo-machine/1"
    assert main(["bench", "engine", "-m", str(tiny_folder), "-p", "8", "-n", "0", "-r", "1",
                 "--machine", "none"]) == 0
    assert "roofline" not in capsys.readouterr().out


def test_engine_counts_every_token(tiny_folder: Path) -> None:
    args = EngineArgs(model=str(tiny_folder), num_blocks=200, max_num_seqs=6, max_model_len=200,
                      max_num_batched_tokens=16)
    with EngineBench(resolve_args(args).config) as bench:
        assert bench.run(Case("pp", 50)).tokens == 50
        assert bench.run(Case("tg", 9)).tokens == 8  # behind the first
        # prompts take several steps, so that some sequences are far ahead of the last
        run = bench.run(Case("tg", 9, sequences=6, context=40))
        assert run.tokens >= 48 and run.mean_context > 40
        assert bench.core.num_requests == 0 and not bench.core.has_requests
        for case, name in ((Case("pp", 200), "max_model_len"),
                           (Case("tg", 9, sequences=7), "max_num_seqs"),
                           (Case("tg", 100, sequences=6, context=90), None)):
            if name is None:
                bench.check([case])
                continue
            with pytest.raises(ConfigError, match=name):
                run_cases(bench, [case], repetitions=1)


def test_latency_and_throughput(tiny_folder: Path, tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    common = ["-m", str(tiny_folder), "--kv-cache-memory-bytes", "8m", "--output-json", str(path)]
    assert main(["bench", "latency", "--num-iters", "2", "--num-iters-warmup", "1",
                 "--input-len", "8", "--output-len", "3", "--batch-size", "2", *common]) == 0
    data = json.loads(path.read_text())
    assert len(data["latencies"]) == 2 and set(data["percentiles"]) == {
        "10", "25", "50", "75", "90", "99"}
    assert "Avg latency" in capsys.readouterr().out
    assert main(["bench", "throughput", "--dataset-name", "shared-prefix", "--num-prompts", "6",
                 "--prefix-repetition-prefix-len", "32", "--prefix-repetition-suffix-len", "4",
                 "--prefix-repetition-num-prefixes", "2", "--prefix-repetition-output-len", "3",
                 "--max-num-seqs", "2", *common]) == 0
    data = json.loads(path.read_text())
    assert data["num_requests"] == 6 and data["total_num_tokens"] == 6 * 39
    assert data["total_cached_tokens"] > 0
    assert data["tokens_per_second"] > 0 and data["mean_ttft_ms"] > 0


def test_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    with serving(fake_async_llm(step_s=0.005)) as server:  # steps apart, so pieces are too
        assert main(["bench", "serve", "--base-url", server.base_url, "--num-prompts", "6",
                     "--input-len", "5", "--output-len", "4", "--ignore-eos",
                     "--request-rate", "500", "--burstiness", "0.5", "--max-concurrency", "3",
                     "--goodput", "ttft:60000", "tpot:60000", "--metric-percentiles", "50,99.9",
                     "--server-pid", str(os.getpid()),
                     "--save-result", str(path)]) == 0
        out = capsys.readouterr().out
        assert main(["bench", "serve", "--base-url", server.base_url, "-m", "wrong"]) == 1
        assert "HTTP 404" in capsys.readouterr().err
    for part in ("Serving Benchmark Result", "P99.9 TTFT (ms)", "CPU time of the load generator"):
        assert part in out
    data = json.loads(path.read_text())
    assert (data["completed"], data["failed"], data["model_id"]) == (6, 0, "fake-model")
    assert data["server_cpu_s"] >= 0  # this very process plays the server
    assert data["total_output_tokens"] == 24 and data["request_goodput"] > 0
    for name in ("ttft", "tpot", "itl", "e2el"):
        for field in ("mean", "median", "std", "p50", "p99.9"):
            assert data[f"{field}_{name}_ms"] is not None


@pytest.mark.parametrize(("arguments", "reason"), [
    (["serve", "--base-url", "http://127.0.0.1:9", "--num-prompts", "1"], "does not answer"),
    (["serve", "--goodput", "x:1"], "NAME:MILLISECONDS"),
    (["serve", "--dataset-name", "trace"], "--dataset-path"),
    (["serve", "--server-pid", "1073741824"], "no such process"),
    (["engine", "-p", "0", "-n", "0"], "nothing to measure"),
    (["engine", "-m", "/nowhere.gguf"], "/nowhere.gguf"),
])
def test_user_errors_are_one_line(arguments: list[str], reason: str,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and reason in err
