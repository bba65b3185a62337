"""`python -m benchmarks.serving`: what HTTP costs, and what a long prompt does to its neighbours.

Efficiency: the same random requests, all at once, through `octavo serve` and through LLM.generate,
alternately; tokens a second of CPU time, the load generator's (a process of its own) not counted.
Stutter: 16 streams decode, a prompt of 2,000 tokens arrives: its time to first token and the
longest gap the streams see meanwhile, for several bounds of a step.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, facts, model_path, parser, write_json
from benchmarks.server_process import ServerProcess
from octavo.bench.datasets import BenchRequest, Vocabulary, random_requests
from octavo.bench.http_client import HttpClient
from octavo.bench.load import RequestRecord
from octavo.bench.openai_client import OpenAISender, served_model

# efficiency: prompts and outputs of each of the streams
_INPUT_LEN, _OUTPUT_LEN = 128, 128
_VOCABULARY = Vocabulary(30000, 300)  # ids of words in the common vocabularies
# stutter
_STREAMS, _STREAM_PROMPT, _LONG_PROMPT = 16, 64, 2000
# flags of a step: (max_num_batched_tokens, max_prefill_beside_decodes)
BOUNDS = ((128, 0), (256, 0), (512, 0), (1024, 0), (2048, 0), (512, 128), (512, 256))
_SETTLE_TOKENS = 8
_TIMEOUT_S = 120.0


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = parser("serving", __doc__)
    made.add_argument("--streams", type=int, default=32, metavar="N", help="of the efficiency")
    made.add_argument("-r", "--repetitions", type=int, default=5, metavar="N")
    made.add_argument("--only", choices=("efficiency", "stutter"))
    made.add_argument("--quick", action="store_true", help="fewer bounds of a step")
    args = made.parse_args(argv)
    before = os.getloadavg()[0]
    model = model_path(args.model)
    data: dict[str, Any] = {}
    if args.only != "stutter":
        data["efficiency"] = efficiency(model, args.streams, args.threads, args.repetitions)
        print(efficiency_text(data["efficiency"]))
    if args.only != "efficiency":
        bounds = BOUNDS[1:3] if args.quick else BOUNDS
        data["stutter"] = [stutter(model, bound, args.threads, args.repetitions)
                           for bound in bounds]
        print(stutter_text(data["stutter"]))
    write_json(args.json, "serving", {"facts": facts(before), "model": Path(model).name, **data})
    return 0


def efficiency(model: str, streams: int, threads: int, repetitions: int) -> dict[str, Any]:
    """Output tokens a CPU-second of engine and server; the first repetition is not counted."""
    from octavo import LLM
    from octavo.bench.offline import run_throughput

    offline: list[dict[str, float]] = []
    served: list[dict[str, float]] = []
    flags = ("--no-enable-prefix-caching", "--num-threads", str(threads))
    with (LLM(model, enable_prefix_caching=False, num_threads=threads) as llm,
          ServerProcess(model, *flags) as server):
        server.wait_ready()
        for repetition in range(repetitions + 1):
            requests = random_requests(_VOCABULARY, num_prompts=streams, input_len=_INPUT_LEN,
                                       output_len=_OUTPUT_LEN, seed=repetition)
            report = run_throughput(llm, requests)
            tokens = report.serving.total_output_tokens
            found = load(server, streams=streams, input_len=_INPUT_LEN, output_len=_OUTPUT_LEN,
                         seed=repetition)
            if repetition:
                offline.append({"tokens": tokens, "seconds": report.elapsed_s,
                                "cpu_s": report.serving.client_cpu_s})
                served.append(found)
    return {"streams": streams, "input_len": _INPUT_LEN, "output_len": _OUTPUT_LEN,
            "offline": offline, "served": served, **efficiency_summary(offline, served)}


def efficiency_summary(offline: list[dict[str, float]],
                       served: list[dict[str, float]]) -> dict[str, float]:
    """Medians and their ratio."""
    def rate(runs: list[dict[str, float]], of: str) -> float:
        return statistics.median(run["tokens"] / run[of] for run in runs)

    return {
        "offline_tokens_per_cpu_s": rate(offline, "cpu_s"),
        "served_tokens_per_cpu_s": rate(served, "cpu_s"),
        "ratio": rate(served, "cpu_s") / rate(offline, "cpu_s"),
        "offline_tokens_per_s": rate(offline, "seconds"),
        "served_tokens_per_s": rate(served, "seconds"),
        "client_cpu_s": statistics.median(run["client_cpu_s"] for run in served),
    }


def load(server: ServerProcess, *, streams: int, input_len: int, output_len: int,
         seed: int) -> dict[str, float]:
    """One run of `octavo bench serve`, a process of its own: random requests, all at once.

    Raises RuntimeError when a request failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "load.json"
        subprocess.run(
            [sys.executable, "-m", "octavo.cli.main", "bench", "serve", "--base-url",
             server.base_url, "--server-pid", str(server.pid), "--prompt-format", "ids",
             "--vocab-size", str(_VOCABULARY.size), "--num-prompts", str(streams), "--input-len",
             str(input_len), "--output-len", str(output_len), "--ignore-eos", "--bench-seed",
             str(seed), "--save-result", str(out)],
            check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        report = json.loads(out.read_text())
    if report["failed"]:
        raise RuntimeError(f"requests failed: {report['errors']}")
    return {"tokens": report["total_output_tokens"], "seconds": report["duration"],
            "cpu_s": report["server_cpu_s"], "client_cpu_s": report["client_cpu_s"],
            "mean_ttft_ms": report["mean_ttft_ms"], "p99_itl_ms": report["p99_itl_ms"]}


def stutter(model: str, bound: tuple[int, int], threads: int, repetitions: int) -> dict[str, Any]:
    """One server with this bound of a step; medians over the repetitions."""
    flags = ("--no-enable-prefix-caching", "--num-threads", str(threads),
             "--max-num-batched-tokens", str(bound[0]),
             "--max-prefill-beside-decodes", str(bound[1]))
    with ServerProcess(model, *flags) as server:
        server.wait_ready()
        runs = [asyncio.run(_intrude(server.base_url, seed)) for seed in range(repetitions + 1)]
    found = runs[1:]
    return {
        "max_num_batched_tokens": bound[0], "max_prefill_beside_decodes": bound[1],
        **{name: statistics.median(run[name] for run in found) for name in found[0]},
        "runs": found,
    }


async def _intrude(base_url: str, seed: int) -> dict[str, float]:
    requests = random_requests(_VOCABULARY, num_prompts=_STREAMS, input_len=_STREAM_PROMPT,
                               output_len=256, seed=seed)
    long_prompt = random_requests(_VOCABULARY, num_prompts=1, input_len=_LONG_PROMPT,
                                  output_len=1, seed=1000 + seed)[0]
    async with HttpClient(base_url) as client:
        missing = {id(request): _SETTLE_TOKENS for request in requests}
        all_stream = asyncio.Event()

        def count(request: BenchRequest) -> None:
            missing[id(request)] = missing.get(id(request), 0) - 1
            if missing[id(request)] == 0 and max(missing.values()) <= 0:
                all_stream.set()

        sender = OpenAISender(client, model=await served_model(client), prompt_format="ids",
                              sampling={"temperature": 0.0, "ignore_eos": True}, on_piece=count)
        tasks = [asyncio.create_task(sender.send(request)) for request in requests]
        async with asyncio.timeout(_TIMEOUT_S):
            await all_stream.wait()
        intruder = await sender.send(long_prompt)
        records = await asyncio.gather(*tasks)
    return gaps(records, intruder)


def gaps(records: list[RequestRecord], intruder: RequestRecord) -> dict[str, float]:
    """Of the streams, in milliseconds: gaps that end before the long prompt was sent, and those
    that overlap the time until its first token. Raises RuntimeError when a stream failed, or had
    not begun, or had ended."""
    opens, closes = intruder.start_s, intruder.start_s + intruder.ttft_s
    quiet: list[float] = []
    during: list[float] = []
    for record in [*records, intruder]:
        if record.error is not None:
            raise RuntimeError(record.error)
    for record in records:
        moment = record.start_s + record.ttft_s
        if moment > opens or record.start_s + record.latency_s < closes:
            raise RuntimeError("a stream did not run all the while the long prompt was computed")
        for gap in record.itl_s:
            moment += gap
            if moment < opens:
                quiet.append(gap)
            elif moment - gap < closes:
                during.append(gap)
    return {
        "ttft_ms": 1000 * intruder.ttft_s, "longest_gap_ms": 1000 * max(during),
        "median_gap_ms": 1000 * statistics.median(during),
        "quiet_gap_ms": 1000 * statistics.median(quiet) if quiet else 0.0,
    }


def efficiency_text(found: dict[str, Any]) -> str:
    """For people."""
    return (f"| {found['streams']} streams | output tok/s | per CPU-second |\n|---|---:|---:|\n"
            f"| LLM.generate | {found['offline_tokens_per_s']:.0f} | "
            f"{found['offline_tokens_per_cpu_s']:.0f} |\n"
            f"| octavo serve | {found['served_tokens_per_s']:.0f} | "
            f"{found['served_tokens_per_cpu_s']:.0f} |\n\n"
            f"served against offline, per CPU-second: {100 * found['ratio']:.1f} % "
            f"(the load generator took {found['client_cpu_s']:.2f} CPU-seconds a run)\n")


def stutter_text(found: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [("| tokens of a step | of prompts beside decodes | "
              f"TTFT of {_LONG_PROMPT} tokens, ms | "
             f"longest gap of {_STREAMS} streams, ms | their median gap meanwhile | before |"),
             "|---:|---:|---:|---:|---:|---:|"]
    lines += [f"| {row['max_num_batched_tokens']} | {row['max_prefill_beside_decodes'] or '-'} | "
              f"{row['ttft_ms']:.0f} | {row['longest_gap_ms']:.0f} | {row['median_gap_ms']:.0f} | "
              f"{row['quiet_gap_ms']:.0f} |" for row in found]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
