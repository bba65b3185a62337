"""The speed goals, and what the result files of `benchmarks.all` say about each. Pure functions.

A part whose file is missing leaves its goals "not measured".
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from octavo.bench.machine_probe import probe_from_json

Results = dict[str, dict[str, Any]]  # by part of benchmarks.all
# bandwidth, bytes/s, from which decode of one sequence has the higher goal
_FAST_MEMORY = 28.5e9
_SIXTEEN_BITS = ("BF16", "F16", "bf16")


@dataclasses.dataclass(slots=True, frozen=True)
class Goal:
    """One line of the table. is_met None: not measured."""

    what: str
    target: str
    measured: str
    is_met: bool | None


def goals(results: Results) -> list[Goal]:
    """All of them, in the order of their numbers."""
    found: list[Goal] = []
    checks: tuple[tuple[str, Callable[[Results], list[Goal]], tuple[str, ...]], ...] = (
        ("1 decode of one sequence", _decode, ("single",)),
        ("2 prefill of 512", _prefill, ("single",)),
        ("3 decode of many", _batch, ("batch",)),
        ("4 long context", _long, ()),
        ("5 shared prefix", _shared, ("shared_prefix",)),
        ("6 Q8_0 and 16-bit files", _types, ("single",)),
        ("7 start and memory", _startup, ("startup_memory",)),
        ("8 HTTP", _serving, ("serving",)),
        ("9 never collapse", _robustness, ("robustness",)),
    )
    for name, check, needed in checks:
        rows = check(results) if all(part in results for part in needed) else []
        found += rows or [Goal(name, "", "not measured", None)]
    return found


def storage_type(model: str) -> str:
    """Q4_1 of SmolLM2-135M-Instruct.Q4_1.gguf; bf16 of a folder that ends in -bf16."""
    stem = Path(model).name.removesuffix(".gguf")
    return stem.rpartition("." if Path(model).suffix == ".gguf" else "-")[2]


def rate_of(results: Results, parts: Sequence[str], test: str, *, peer: bool,
            types: Sequence[str] | None = None) -> tuple[float, str]:
    """The best median of Octavo, or of any peer, in a test, over files of these types (all by
    default), and whose it is. (0, "") where nothing was measured."""
    best = 0.0, ""
    for part in parts:
        for row in results.get(part, {}).get("rows", ()):
            kind = storage_type(row["model"])
            if row["test"] != test or (types is not None and kind not in types):
                continue
            for name, rate in row["medians"].items():
                if (name != "octavo") == peer:
                    best = max(best, (rate, f"{name} {kind}"))
    return best


def _against(results: Results, what: str, parts: Sequence[str], test: str, at_least: float, *,
             ours: Sequence[str] = ("Q4_1",), theirs: Sequence[str] | None = None) -> list[Goal]:
    rate, _ = rate_of(results, parts, test, peer=False, types=ours)
    best, name = rate_of(results, parts, test, peer=True, types=theirs)
    if not rate or not best:
        return []
    return [Goal(what, f">= {at_least:g}x the best peer",
                 f"{rate:.0f} tok/s, {rate / best:.2f}x {name} ({best:.0f})",
                 rate >= at_least * best)]


def _decode(results: Results) -> list[Goal]:
    rate, _ = rate_of(results, ("single",), "tg64@512", peer=False, types=("Q4_1",))
    probes = [entry for entry in results["single"]["machine"]
              if storage_type(entry["model"]) == "Q4_1"]
    if not rate or not probes:
        return []
    cost = probes[0]["cost"]
    read = cost["weight_bytes"] + 544 * cost["kv_bytes_per_token"]  # the middle of the window
    threads = results["single"]["threads"]
    bandwidth = max(probe_from_json(entry["probe"]).bandwidth(int(read), threads)
                    for entry in probes)
    share = rate * read / bandwidth
    what = "1 decode, 1 sequence, context 512, Q4_1"
    at_least = 1.6 if bandwidth >= _FAST_MEMORY else 1.4
    return [
        Goal(what, ">= 85 % of the memory roofline",
             f"{100 * share:.0f} % of {bandwidth / 1e9:.1f} GB/s", share >= 0.85),
        *_against(results, what, ("single",), "tg64@512", at_least),
    ]


def _prefill(results: Results) -> list[Goal]:
    rate, _ = rate_of(results, ("single",), "pp512", peer=False, types=("Q4_1",))
    what = "2 prefill of 512, Q4_1"
    if not rate:
        return []
    return [Goal(what, ">= 2,200 tok/s", f"{rate:,.0f} tok/s", rate >= 2200),
            *_against(results, what, ("single",), "pp512", 1.45)]


def _batch(results: Results) -> list[Goal]:
    parts = ("batch", "batch_large", "batch_large_q4_0", "batch_types")
    found = []
    for context in (64, 512):
        for count in (8, 16, 32, 64):
            found += _against(results, f"3 decode, {count} sequences, context {context}, Q4_1",
                              parts, f"tg32x{count}@{context}", 1.8)
    rate, _ = rate_of(results, ("batch",), "tg32x32@512", peer=False, types=("Q4_1",))
    probes = [entry for entry in results["batch"]["machine"]
              if storage_type(entry["model"]) == "Q4_1"]
    if rate and probes:
        cost, threads = probes[0]["cost"], results["batch"]["threads"]
        macs = sum(sum(cost[name].values()) for name in ("layer_macs", "head_macs"))
        peak = max(probe_from_json(entry["probe"]).peak("int8", threads) for entry in probes)
        share = rate * macs / peak
        found.append(Goal("3 decode, 32 sequences, context 512, Q4_1", ">= 40 % of int8 peak",
                          f"{100 * share:.0f} % of {peak / 1e9:.0f} GMAC/s", share >= 0.4))
    return found


def _long(results: Results) -> list[Goal]:
    """From a run of 4,096 tokens alone if there is one, else from that of every length."""
    tests = (("pp4096", "prefill of 4,096"), ("tg32@4096", "decode at context 4,096"))
    if "long" in results:
        return [goal for test, name in tests
                for goal in _against(results, f"4 {name}, Q4_1", ("long",), test, 2)]
    if "growth" not in results:
        return []
    found = []
    for kind, name in (("pp", tests[0][1]), ("tg", tests[1][1])):
        here = [p for p in results["growth"]["points"]
                if p["kind"] == kind and p["tokens"] == 4096]
        ours = max((p["rate"] for p in here if p["entrant"] == "octavo"
                    and storage_type(p["model"]) == "Q4_1"), default=0.0)
        best = max((p["rate"] for p in here if p["entrant"] == "llama-cpp-python"), default=0.0)
        if ours and best:
            found.append(Goal(f"4 {name}, Q4_1", ">= 2x llama.cpp's best",
                              f"{ours:.0f} tok/s, {ours / best:.2f}x ({best:.0f})",
                              ours >= 2 * best))
    return found


def _shared(results: Results) -> list[Goal]:
    data = results["shared_prefix"]
    what = f"5 {data['sequences']} sequences over one prefix of {data['prefix']:,}"
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in data["rates"].items())
    return [Goal(what, ">= 1.3x private copies", f"{data['ratio']:.2f}x ({rates} tok/s)",
                 data["ratio"] >= 1.3),
            Goal(what, "bit-identical", f"{data['tokens_compared']:,} tokens compared",
                 data["bit_identical"])]


def _types(results: Results) -> list[Goal]:
    found = []
    for what, types in (("Q8_0", ("Q8_0",)), ("16 bits", _SIXTEEN_BITS)):
        for test, name in (("tg64@512", "decode, 1 sequence"), ("pp512", "prefill of 512"),
                           ("tg32x8@64", "decode, 8 sequences, context 64"),
                           ("tg32x32@64", "decode, 32 sequences, context 64"),
                           ("tg32x8@512", "decode, 8 sequences, context 512"),
                           ("tg32x32@512", "decode, 32 sequences, context 512")):
            found += _against(results, f"6 {what}: {name}", ("single", "batch_types", "vllm"),
                              test, 1.0, ours=types, theirs=types)
    return found


def _startup(results: Results) -> list[Goal]:
    found = []
    for mode, data in results["startup_memory"]["modes"].items():
        found.append(Goal(f"7 {mode}: start to first token", f"<= {data['start_limit_s']} s",
                          f"{data['start_s']:.2f} s", data["start_s"] <= data["start_limit_s"]))
        found.append(Goal(f"7 {mode}: peak PSS", f"<= {data['peak_limit_bytes'] / 1e6:.0f} MB",
                          f"{data['peak_pss_bytes'] / 1e6:.0f} MB",
                          data["peak_pss_bytes"] <= data["peak_limit_bytes"]))
    return found


def _serving(results: Results) -> list[Goal]:
    data = results["serving"]
    found = []
    if "efficiency" in data:
        ratio = data["efficiency"]["ratio"]
        found.append(Goal(f"8 {data['efficiency']['streams']} streams over HTTP",
                          ">= 92 % of offline, per CPU-second", f"{100 * ratio:.1f} %",
                          ratio >= 0.92))
    for row in data.get("stutter", ()):
        if (row["max_num_batched_tokens"], row["max_prefill_beside_decodes"]) == (512, 256):
            found.append(Goal("8 a prompt of 2,000 among 16 streams, by default", "reported",
                              f"first token after {row['ttft_ms']:.0f} ms, longest gap "
                              f"{row['longest_gap_ms']:.0f} ms", True))
    return found


def _robustness(results: Results) -> list[Goal]:
    return [Goal(f"9 {row['case']}: {row['measure']}",
                 f"{'>=' if row['at_least'] else '<='} {row['goal']:.3g}",
                 f"{row['value']:.3f} ({row['note']})", row["holds"])
            for row in results["robustness"].get("findings", ())]
