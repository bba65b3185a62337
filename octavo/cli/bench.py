"""`octavo bench`: what the machine can do, what the engine makes of it, and load on a server."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.bench_flags import add_dataset_flags, add_load_flags, counts, requests_of
from octavo.cli.flags import (
    DEFAULT_MODEL,
    Commands,
    add_batch_flags,
    add_engine_flags,
    count,
    engine_args,
)

if TYPE_CHECKING:
    from octavo.bench.datasets import BenchRequest
    from octavo.bench.engine_bench import Case
    from octavo.bench.load import LoadResult
    from octavo.bench.machine_probe import MachineProbe
    from octavo.engine.llm import LLM

# a short probe for the percentages of `bench engine`: about 3 s
_QUICK_SAMPLES = 5
_QUICK_FOOTPRINTS_MB = (32, 64, 96, 128, 256, 512)


def add_parser(commands: Commands) -> None:
    """Adds the subcommand and its own."""
    parser = commands.add_parser("bench", help="measure the machine, the engine or a server")
    kinds = parser.add_subparsers(title="benches", dest="bench", required=True, metavar="BENCH")
    _add_machine(kinds)
    _add_engine(kinds)
    _add_latency(kinds)
    _add_throughput(kinds)
    _add_serve(kinds)


def _add_machine(kinds: Commands) -> None:
    parser = kinds.add_parser("machine", help="dot products, memory reads and thread latencies")
    parser.set_defaults(run=_run_machine)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write them as JSON")
    parser.add_argument("--num-threads", type=count, metavar="N",
                        help="the most threads to measure (default: physical cores)")
    parser.add_argument("--samples", type=count, default=7, metavar="N",
                        help="of each figure (default %(default)s)")
    parser.add_argument("--footprints", type=counts, metavar="MB,MB,...",
                        help="sizes of the memory reads (default 1 to 512)")


def _add_engine(kinds: Commands) -> None:
    parser = kinds.add_parser("engine", help="prefill and decode speed of the engine core")
    parser.set_defaults(run=_run_engine)
    _add_model(parser)
    parser.add_argument("-p", "--n-prompt", type=counts, default=[512], metavar="N,N,...",
                        help="prompt lengths to prefill, 0 for none (default 512)")
    parser.add_argument("-n", "--n-gen", type=count, default=128, metavar="N",
                        help="tokens to generate, 0 for none (default %(default)s)")
    parser.add_argument("-d", "--context", type=counts, default=[1], metavar="N,N,...",
                        help="tokens in each sequence before it generates (default 1)")
    parser.add_argument("-b", "--batch", type=counts, default=[1], metavar="N,N,...",
                        help="sequences that generate together (default 1)")
    parser.add_argument("-r", "--repetitions", type=count, default=5, metavar="N",
                        help="of each test (default %(default)s)")
    parser.add_argument("--machine", metavar="FILE",
                        help="a probe of `bench machine --json`, for percentages; "
                        "'none' leaves them out (default: short probes before and after the run)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    add_engine_flags(parser)
    parser.add_argument("--max-num-batched-tokens", type=count, metavar="N",
                        help="most tokens of one step (default 512)")


def _add_latency(kinds: Commands) -> None:
    parser = kinds.add_parser("latency", help="latency of one batch, offline")
    parser.set_defaults(run=_run_latency)
    _add_model(parser)
    for flag, default, text in (
            ("--input-len", 32, "tokens of each prompt"),
            ("--output-len", 128, "tokens to generate"),
            ("--batch-size", 8, "prompts at once"), ("--n", 1, "samples of each prompt"),
            ("--num-iters-warmup", 3, "batches that are not counted"),
            ("--num-iters", 10, "batches that are")):
        parser.add_argument(flag, type=count, default=default, metavar="N",
                            help=f"{text} (default %(default)s)")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the results")
    add_engine_flags(parser)
    add_batch_flags(parser)


def _add_throughput(kinds: Commands) -> None:
    parser = kinds.add_parser("throughput", help="many requests at once, offline")
    parser.set_defaults(run=_run_throughput)
    _add_model(parser)
    add_dataset_flags(parser)
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the results")
    add_engine_flags(parser)
    add_batch_flags(parser)


def _add_serve(kinds: Commands) -> None:
    parser = kinds.add_parser("serve", help="load on an OpenAI-compatible server")
    parser.set_defaults(run=_run_serve)
    add_load_flags(parser)
    add_dataset_flags(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", default=DEFAULT_MODEL, metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id "
                        "(default %(default)s)")


def _progress() -> Callable[[str], None]:
    """A status line on a terminal's stderr, nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda what: None
    return lambda what: print(f"\r\x1b[K{what}\r", end="", file=sys.stderr, flush=True)


def _print(*tables: Any) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file or a pipe: do not fold columns
    for table in tables:
        console.print(table)


def _write_json(path: Path | None, data: dict[str, Any]) -> None:
    from octavo.errors import ConfigError

    if path is None:
        return
    try:
        path.write_text(json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}", param="json") from None


def _run_machine(args: argparse.Namespace) -> int:
    from octavo.bench.machine_probe import FOOTPRINTS_MB, probe_machine
    from octavo.bench.tables import machine_tables

    probe = probe_machine(threads=args.num_threads, samples=args.samples,
                          footprints_mb=args.footprints or FOOTPRINTS_MB, progress=_progress())
    _progress()("")
    load = "" if probe.load_average is None else f", load average {probe.load_average[0]:.1f}"
    print(f"{probe.cpu}, {probe.threads} threads{load}")
    _print(*machine_tables(probe))
    _write_json(args.json, probe.to_json())
    return 0


def _run_engine(args: argparse.Namespace) -> int:
    import dataclasses

    from octavo.bench.engine_bench import EngineBench, against_roofline, run_cases
    from octavo.bench.machine_probe import merge_probes
    from octavo.bench.stats import load_average
    from octavo.bench.tables import engine_json, engine_table
    from octavo.engine.factory import resolve_args
    from octavo.errors import ConfigError

    cases = _cases(args)
    if not cases:
        raise ConfigError("-p and -n are both 0: there is nothing to measure", param="n_gen")
    longest = max(case.kv_tokens // case.sequences + 1 for case in cases)
    wanted = dataclasses.replace(
        engine_args(args), max_num_seqs=max(case.sequences for case in cases),
        max_model_len=args.max_model_len or longest + 64)
    if wanted.kv_cache_memory_bytes is None:
        blocks = max(case.sequences * (-(-case.kv_tokens // case.sequences // 16) + 8)
                     for case in cases)
        wanted = dataclasses.replace(wanted, num_blocks=max(64, 2 * blocks))
    with EngineBench(resolve_args(wanted).config) as bench:
        threads = bench.config.model.num_threads
        probe = _probe_for(args.machine, threads)
        results = run_cases(bench, cases, repetitions=args.repetitions, progress=_progress())
        facts = bench.describe()
    if probe is not None:
        if args.machine is None:  # the machine may have been busy before, or after
            again = _probe_for(None, threads)
            assert again is not None
            probe = merge_probes(probe, again)
        results = against_roofline(results, bench.config, probe)
    _progress()("")
    model = bench.config.model
    load = load_average()
    title = (f"{Path(model.path).name}, {model.backend} {facts.get('isa', '')}, "
             f"{model.num_threads} threads, KV {bench.config.cache.dtype}"
             + ("" if load is None else f", load average {load[0]:.1f}"))
    _print(engine_table(results, title=title))
    _write_json(args.json, engine_json(results, model=model.path, facts=facts,
                                       load_s=bench.load_s, probe=probe))
    return 0


def _cases(args: argparse.Namespace) -> list["Case"]:
    from octavo.bench.engine_bench import Case

    cases = [Case("pp", tokens) for tokens in args.n_prompt if tokens]
    if args.n_gen:
        cases += [Case("tg", max(2, args.n_gen), sequences=max(1, batch), context=max(1, context))
                  for context in args.context for batch in args.batch]
    return cases


def _probe_for(machine: str | None, threads: int) -> "MachineProbe | None":
    from octavo.bench.machine_probe import load_probe, probe_machine

    if machine == "none":
        return None
    if machine is not None:
        return load_probe(Path(machine))
    return probe_machine(threads=threads, samples=_QUICK_SAMPLES,
                         footprints_mb=_QUICK_FOOTPRINTS_MB, progress=_progress())


def _llm(args: argparse.Namespace) -> "LLM":
    from octavo.engine.llm import LLM

    return LLM(
        args.model, max_model_len=args.max_model_len,
        allow_long_max_model_len=args.allow_long_max_model_len, max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens, kv_cache_dtype=args.kv_cache_dtype,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes, block_size=args.block_size,
        enable_prefix_caching=args.enable_prefix_caching,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        max_prefill_beside_decodes=args.max_prefill_beside_decodes,
        jump_forward=args.jump_forward, async_scheduling=args.async_scheduling,
        merge_shared_prefix=args.merge_shared_prefix,
        backend=args.backend, quantization=args.quantization,
        num_threads=args.num_threads, seed=args.seed,
        scheduling_policy=args.scheduling_policy)


def _run_latency(args: argparse.Namespace) -> int:
    from octavo.bench.offline import run_latency, vocabulary_of

    with _llm(args) as llm:
        report = run_latency(
            llm, vocabulary=vocabulary_of(llm.get_tokenizer()), input_len=args.input_len,
            output_len=args.output_len, batch_size=args.batch_size, num_samples=args.n,
            num_iters=args.num_iters, num_iters_warmup=args.num_iters_warmup,
            progress=_progress())
    _progress()("")
    print(report.text())
    _write_json(args.output_json, report.to_json())
    return 0


def _run_throughput(args: argparse.Namespace) -> int:
    from octavo.bench.offline import run_throughput, vocabulary_of

    with _llm(args) as llm:
        requests = requests_of(args, vocabulary_of(llm.get_tokenizer()))
        report = run_throughput(llm, requests)
    print(report.text())
    _write_json(args.output_json, report.to_json())
    return 0


def _run_serve(args: argparse.Namespace) -> int:
    import asyncio

    from octavo.bench.datasets import Vocabulary
    from octavo.bench.offline import vocabulary_of
    from octavo.bench.openai_client import WORDS
    from octavo.bench.process_cpu import tree_cpu_s
    from octavo.bench.serving_report import parse_goodput, report_json, report_text, serving_report

    slos = parse_goodput(args.goodput or [])
    tokenizer = None
    if args.tokenizer is not None:
        from octavo.engine.factory import load_front_end, resolve_args

        tokenizer = load_front_end(resolve_args(_tokenizer_args(args.tokenizer)).config).tokenizer
    vocabulary = vocabulary_of(tokenizer) if tokenizer else Vocabulary(
        args.vocab_size if args.prompt_format == "ids" else len(WORDS))
    requests = requests_of(args, vocabulary)
    if args.server_pid is not None:
        tree_cpu_s(args.server_pid)  # a wrong one is refused before the load
    result, model, server_cpu = asyncio.run(_load(args, requests, tokenizer))
    report = serving_report(result, slos=slos, percentiles=args.metric_percentiles,
                            server_cpu_s=server_cpu)
    print(report_text(report, metrics=args.percentile_metrics))
    _write_json(args.save_result, {
        "backend": "openai", "endpoint": args.endpoint, "model_id": model,
        "dataset_name": args.dataset_name, "num_prompts": len(requests),
        "request_rate": "inf" if args.request_rate == float("inf") else args.request_rate,
        "burstiness": args.burstiness, "max_concurrency": args.max_concurrency,
        "goodput_slos_ms": slos, **report_json(report)})
    return 0 if report.completed else 1


def _tokenizer_args(model: str) -> Any:
    from octavo.config_resolve import EngineArgs

    return EngineArgs(model=model)


async def _load(args: argparse.Namespace, requests: "list[BenchRequest]",
                tokenizer: Any) -> "tuple[LoadResult, str, float | None]":
    """Asks for the model, sends one request to see that the server answers, then the load.
    Returns the model's name and the server's CPU seconds too, where it is watched."""
    from octavo.bench.http_client import HttpClient
    from octavo.bench.load import arrival_times, run_load
    from octavo.bench.openai_client import OpenAISender, served_model
    from octavo.bench.process_cpu import tree_cpu_s
    from octavo.errors import OctavoError

    headers = {}
    if args.api_key:
        headers["Authorization"] = f"Bearer {args.api_key}"
    sampling = {"temperature": args.temperature}
    if args.ignore_eos:
        sampling["ignore_eos"] = True
    async with HttpClient(args.base_url, headers=headers) as client:
        model = args.model or await served_model(client)
        sender = OpenAISender(client, model=model, endpoint=args.endpoint,
                              prompt_format=args.prompt_format, tokenizer=tokenizer,
                              sampling=sampling, timeout_s=args.timeout)
        first = await sender.send(requests[0])
        if first.error is not None:
            raise OctavoError(f"the first request failed, so the run was not started: "
                              f"{first.error}")
        rate = args.request_rate
        due = [r.arrival_s for r in requests if r.arrival_s is not None]
        if rate != float("inf") or len(due) != len(requests):
            due = arrival_times(len(requests), request_rate=rate, burstiness=args.burstiness,
                                seed=args.bench_seed)
        watched = args.server_pid
        before = None if watched is None else tree_cpu_s(watched)
        result = await run_load(requests, sender.send, due_s=due,
                                max_concurrency=args.max_concurrency)
        server_cpu = None if before is None else tree_cpu_s(watched) - before
    return result, model, server_cpu
