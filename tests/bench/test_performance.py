"""The measuring programs: goals from result files, the document, growth, stutter, memory, parts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import all as everything
from benchmarks import growth, live_view, report_performance, shared_prefix
from benchmarks.goals import Goal, goals, rate_of, storage_type
from benchmarks.serving import efficiency_summary, gaps
from benchmarks.startup_memory import PssWatch, pss_bytes
from octavo.bench.load import RequestRecord
from octavo.testing.toy_model import tiny_llama

COST = {"weight_bytes": 10**8, "layer_macs": {"int8": 10**8}, "head_macs": {"int8": 3 * 10**7},
        "kv_bytes_per_token": 23040.0, "attention_macs": 34560, "attention_form": "bf16"}
PROBE = {
    "format": "octavo-machine/1", "cpu": "c", "threads": 2, "barrier_s": 1e-6, "wake_s": 1e-5,
    "load_average": None, "measured_at": "2026-01-01T00:00:00Z",
    "rates": [{"name": "read", "isa": "a", "threads": 2, "best": 3e10, "median": 3e10,
               "footprint": 10**8},
              *({"name": name, "isa": "a", "threads": 2, "best": 4e11, "median": 4e11,
                 "footprint": 0} for name in ("int8", "bf16", "f32"))],
}


def row(test: str, model: str, **medians: float) -> dict[str, Any]:
    peers = [rate for name, rate in medians.items() if name != "octavo"]
    ratio = medians["octavo"] / max(peers) if peers and "octavo" in medians else None
    return {"test": test, "model": model, "ratio": ratio, "ratio_any": ratio,
            "medians": {name.replace("llama", "llama-cpp-python"): rate
                        for name, rate in medians.items()}}


def compared(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"rows": list(rows), "threads": 2, "missing": ["vllm: not installed"],
            "load_average": {"before": 0.25}, "loads": [
                {"entrant": "llama-cpp-python", "facts": {"version": "0.3.36"}}],
            "machine": [{"model": "/m/S.Q4_1.gguf", "probe": PROBE, "cost": COST}]}


SINGLE = compared(row("tg64@512", "/m/S.Q4_1.gguf", octavo=240.0, llama=100.0),
                  row("tg64@512", "/m/S.Q4_0.gguf", octavo=260.0, llama=150.0),
                  row("tg64@512", "/m/S.BF16.gguf", octavo=90.0, llama=80.0),
                  row("tg64@512", "/m/S-bf16", octavo=90.0, transformers=100.0),
                  row("pp512", "/m/S.Q4_1.gguf", octavo=2300.0, llama=2000.0))


def by_name(found: list[Goal], start: str) -> list[Goal]:
    return [goal for goal in found if goal.what.startswith(start)]


def test_goals_take_the_best_peer_over_all_files() -> None:
    found = goals({"single": SINGLE})
    roofline, ratio = by_name(found, "1 ")
    # 30 GB/s over 100 MB and 544 tokens of KV: 266 steps a second at most; that is fast memory
    assert roofline.is_met and "90 % of 30.0 GB/s" in roofline.measured
    assert ratio.target == ">= 1.6x the best peer" and ratio.is_met
    assert "1.60x llama-cpp-python Q4_0" in ratio.measured
    rate, best = by_name(found, "2 ")
    assert rate.is_met and best.is_met is False  # 1.15x of 1.45x
    (bits,) = by_name(found, "6 16 bits")
    assert bits.is_met is False and "transformers bf16" in bits.measured
    assert by_name(found, "5 ") == [Goal("5 shared prefix", "", "not measured", None)]


def test_storage_types_are_read_from_names() -> None:
    assert storage_type("/x/SmolLM2-135M-Instruct.Q4_1.gguf") == "Q4_1"
    assert storage_type("/x/SmolLM2-135M-Instruct-bf16") == "bf16"
    assert rate_of({}, ("single",), "pp512", peer=True) == (0.0, "")


def test_the_document_has_every_part(tmp_path: Path) -> None:
    facts = {"cpu": "AMD", "num_cpus": 2, "memory_gib": 23.5, "kernel": "6", "python": "3.11",
             "octavo": "0.1.0", "commit": "abc", "command": "python -m benchmarks.serving",
             "load_average_before": 0.5, "measured_at": "2026-01-01T00:00:00Z"}
    parts: dict[str, Any] = {
        "machine": {**PROBE, "load_average": [0.5, 0.5, 0.5]},
        "single": SINGLE,
        "serving": {
            "facts": facts,
            "efficiency": {"streams": 32, **efficiency_summary(
                [{"tokens": 100, "cpu_s": 1.0, "seconds": 1.0}],
                [{"tokens": 100, "cpu_s": 1.25, "seconds": 2.0, "client_cpu_s": 0.1}])},
            "stutter": [{"max_num_batched_tokens": 512, "max_prefill_beside_decodes": 256,
                         "ttft_ms": 900.0, "longest_gap_ms": 300.0, "median_gap_ms": 250.0,
                         "quiet_gap_ms": 15.0}]},
        "startup_memory": {"model": "m", "modes": {"LLM": {
            "start_s": 0.7, "start_limit_s": 1.5, "peak_pss_bytes": 400 * 10**6,
            "peak_limit_bytes": 330 * 10**6}}},
        "shared_prefix": {"sequences": 32, "prefix": 1024, "ratio": 1.6, "bit_identical": True,
                          "tokens_compared": 9, "samples": {},
                          "rates": {"shared": 8.0, "private": 5.0},
                          "tokens_per_cpu_s": {"shared": 4.0, "private": 2.5}},
        "robustness": {"findings": [{
            "case": "8 threads", "measure": "decode", "value": 0.97, "goal": 0.95,
            "at_least": True, "note": "against 2", "holds": True}]},
    }
    for name, data in parts.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    (tmp_path / "growth.running.json").write_text("{}")  # not complete
    notes = tmp_path / "notes.md"
    notes.write_text("Prefill is bound by scale work.\n")
    out = tmp_path / "PERFORMANCE.md"
    assert report_performance.main(["--results", str(tmp_path), "--notes", str(notes), "--out",
                                    str(out)]) == 0
    text = out.read_text()
    for expected in ("80.0 % | **missed**", "first token after 900 ms, longest gap 300 ms",
                     "400 MB | **missed**", "Prefill is bound by scale work.", "9 8 threads",
                     "1.60x (shared 8, private 5 tok/s) | met", "commit abc", "0.3.36",
                     "Not measured: vllm: not installed", "| 4 long context |  | not measured | -"):
        assert expected in text, expected


def test_growth_has_the_bound_beside_octavo(tmp_path: Path) -> None:
    def sample(entrant: str, kind: str, tokens: int, context: int, rate: float) -> dict[str, Any]:
        return {"entrant": entrant, "model": "/m/S.Q4_1.gguf", "samples": [rate], "case": {
            "kind": kind, "tokens": tokens, "context": context, "windows": 1}}

    source = tmp_path / "compare.json"
    source.write_text(json.dumps({**compared(), "samples": [
        sample("octavo", "pp", 1000, 0, 1000.0), sample("llama", "pp", 1000, 0, 500.0),
        sample("octavo", "tg", 16, 512, 200.0), sample("broken", "pp", 1000, 0, 1.0)
        | {"samples": []}]}))
    out, plot = tmp_path / "growth.json", tmp_path / "growth.svg"
    assert growth.main(["--from", str(source), "--json", str(out), "--plot", str(plot)]) == 0
    points = json.loads(out.read_text())["points"]
    assert [p["seconds"] for p in points] == [1.0, 2.0, 1 / 200]
    # 1,000 tokens of 1e8 MACs, one head, 500,500 pairs of 34,560 MACs at 4e11 a second
    assert points[0]["bound_s"] == pytest.approx((1e11 + 3e7 + 500_500 * 34_560) / 4e11)
    assert "bound_s" not in points[1]
    assert plot.read_text().count("<polyline") == 5  # a bound beside each of Octavo's curves


def test_gaps_are_those_that_overlap_the_long_prompt() -> None:
    stream = RequestRecord(start_s=0.0, ttft_s=1.0, latency_s=6.0, itl_s=[0.5, 0.5, 3.0, 0.5, 0.5])
    intruder = RequestRecord(start_s=2.5, ttft_s=2.0, latency_s=2.0)
    found = gaps([stream], intruder)
    assert found == {"ttft_ms": 2000.0, "longest_gap_ms": 3000.0, "median_gap_ms": 3000.0,
                     "quiet_gap_ms": 500.0}
    with pytest.raises(RuntimeError, match="did not run"):
        gaps([stream], RequestRecord(start_s=5.5, ttft_s=2.0, latency_s=2.0))
    with pytest.raises(RuntimeError, match="refused"):
        gaps([RequestRecord(error="refused")], intruder)


def test_memory_is_summed_over_the_tree() -> None:
    assert pss_bytes(os.getpid()) > 10**6
    assert pss_bytes(2**22 + 1) == 0  # no such process
    with PssWatch(os.getpid()) as watch:
        while watch.peak == 0:
            pass
    assert watch.peak > 10**6


def test_shared_and_private_prefixes_give_the_same_tokens(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_llama(max_position_embeddings=256).save(tmp_path / "tiny")
    out = tmp_path / "shared.json"
    assert shared_prefix.main(["--model", str(model), "--sequences", "3", "--prefix", "64",
                               "--tokens", "4", "-r", "1", "--threads", "1", "--json",
                               str(out)]) == 0
    data = json.loads(out.read_text())
    assert data["bit_identical"] and data["tokens_compared"] >= 24
    assert {"shared", "private"} <= set(data["rates"]) and "private" in capsys.readouterr().out


def test_the_driver_names_every_part_and_resumes(tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    found = everything.parts(tmp_path, tmp_path, (), quick=False, with_vllm=True)
    names = [part.name for part in found]
    assert {"single", "batch", "growth", "serving", "startup_memory", "vllm"} <= set(names)
    assert all("Q4_0" not in word for part in found for word in part.arguments)  # no such file
    for name in names:
        (tmp_path / f"{name}.json").write_text("{}")
    assert everything.main(["--out", str(tmp_path), "--models", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("there already") == len(names) - 1  # without vllm


def test_cost_of_the_live_view_is_told_by_pairs() -> None:
    def runs(*cpu_s: float) -> list[live_view.Window]:
        return [live_view.Window(tokens=100, seconds=2.0, cpu_s=value) for value in cpu_s]

    found = live_view.summarize(runs(1.01, 2.02, 4.2), runs(1.0, 2.0, 4.0))
    assert found["ratio"] == pytest.approx(1.01)
    assert found["interval"] == (pytest.approx(1.01), pytest.approx(1.05))
    assert found["open_cpu_ms_per_token"] == pytest.approx(20.2)
    assert "+1.00 % (95 %: +1.00 to +5.00 %)" in live_view.text(found, 32)
