"""Flags of `octavo bench` that several benches share, with vLLM's names, and the requests they ask
for. argparse only, until a bench runs.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.flags import count

if TYPE_CHECKING:
    from octavo.bench.datasets import BenchRequest, Vocabulary

_DATASETS = ("random", "prefix_repetition", "shared-prefix", "trace")
_METRICS = ("ttft", "tpot", "itl", "e2el")


def counts(text: str) -> list[int]:
    """Counts with commas between them."""
    return [count(part) for part in text.split(",")]


def percents(text: str) -> list[float]:
    """Percentages with commas between them."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= value <= 100 for value in found):
        raise argparse.ArgumentTypeError(f"{text!r}: give percentages such as 50,90,99")
    return found


def metric_names(text: str) -> list[str]:
    """Names of latency metrics with commas between them."""
    names = text.split(",")
    if not set(names) <= set(_METRICS):
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {','.join(_METRICS)}")
    return names


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """What is asked."""
    group = parser.add_argument_group("dataset")
    group.add_argument("--dataset-name", choices=_DATASETS, default="random",
                       help="random prompts, shared prefixes (two names), or a trace")
    group.add_argument("--dataset-path", type=Path, metavar="FILE",
                       help="of a trace: Azure LLM inference .csv or Mooncake .jsonl")
    group.add_argument("--num-prompts", type=count, metavar="N",
                       help="requests (default 100; of a trace: all)")
    for flag, default, text in (
            ("--random-input-len", 512, "prompt tokens"),
            ("--random-output-len", 128, "output tokens"),
            ("--random-prefix-len", 0, "tokens all prompts begin with"),
            ("--prefix-repetition-prefix-len", 256, "tokens of each shared prefix"),
            ("--prefix-repetition-suffix-len", 256, "tokens behind it"),
            ("--prefix-repetition-num-prefixes", 10, "shared prefixes"),
            ("--prefix-repetition-output-len", 128, "output tokens")):
        group.add_argument(flag, type=count, default=default, metavar="N",
                           help=f"{text} (default %(default)s)")
    group.add_argument("--input-len", type=count, metavar="N", help="same as --random-input-len")
    group.add_argument("--output-len", type=count, metavar="N", help="same as --random-output-len")
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="X",
                       help="lengths vary by this share around theirs (default %(default)s)")
    group.add_argument("--trace-speed", type=float, default=1.0, metavar="X",
                       help="2 plays a trace twice as fast (default %(default)s)")
    group.add_argument("--trace-max-input-len", type=count, metavar="N",
                       help="longer prompts of a trace are cut to this")
    group.add_argument("--trace-max-output-len", type=count, metavar="N",
                       help="longer outputs of a trace are cut to this")
    group.add_argument("--bench-seed", type=int, default=0, metavar="N",
                       help="of prompts, lengths and arrivals (default %(default)s)")


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Which server, how fast, and what is reported."""
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", default="http://127.0.0.1:8000", metavar="URL",
                       help="(default %(default)s)")
    group.add_argument("--endpoint", default="/v1/completions", metavar="PATH",
                       help="chat where it ends in /chat/completions (default %(default)s)")
    group.add_argument("-m", "--model", metavar="NAME", help="(default: the first one served)")
    group.add_argument("--tokenizer", metavar="MODEL",
                       help="a local model whose tokenizer makes prompts of exact length "
                       "(default: common words, about a token each)")
    group.add_argument("--prompt-format", choices=("text", "ids"), default="text",
                       help="ids sends token ids instead of text (completions only)")
    group.add_argument("--vocab-size", type=count, default=32000, metavar="N",
                       help="ids below this are sent, without --tokenizer (default %(default)s)")
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    group.add_argument("--ignore-eos", action="store_true",
                       help="ask for outputs of full length (not every server knows it)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X",
                       help="(default %(default)s, greedy)")
    group.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS",
                       help="of a whole request (default %(default)s)")
    group = parser.add_argument_group("load")
    group.add_argument("--request-rate", type=float, default=float("inf"), metavar="X",
                       help="requests a second; inf sends all at once, or as a trace says "
                       "(default %(default)s)")
    group.add_argument("--burstiness", type=float, default=1.0, metavar="X",
                       help="1 is a Poisson process, less is burstier (default %(default)s)")
    group.add_argument("--max-concurrency", type=count, metavar="N",
                       help="most requests on their way at once")
    group = parser.add_argument_group("report")
    group.add_argument("--goodput", nargs="+", metavar="NAME:MS",
                       help="bounds a good request keeps, such as ttft:500 tpot:50 e2el:5000")
    group.add_argument("--percentile-metrics", type=metric_names, default=list(_METRICS),
                       metavar="NAMES", help="which to print (default ttft,tpot,itl,e2el)")
    group.add_argument("--metric-percentiles", type=percents, default=[99.0], metavar="P,P,...",
                       help="besides the median (default 99)")
    group.add_argument("--server-pid", type=int, metavar="PID",
                       help="a server on this machine whose CPU time is reported too")
    group.add_argument("--save-result", "--output-json", type=Path, metavar="FILE",
                       help="write the results as JSON")


def requests_of(args: argparse.Namespace, vocabulary: "Vocabulary") -> "list[BenchRequest]":
    """The requests the dataset flags ask for. Raises ConfigError."""
    from octavo.bench.datasets import prefix_repetition_requests, random_requests, trace_requests
    from octavo.errors import ConfigError

    if args.dataset_name == "trace":
        if args.dataset_path is None:
            raise ConfigError("dataset_name is 'trace': give its file with --dataset-path",
                              param="dataset_path")
        return trace_requests(args.dataset_path, vocabulary, num_prompts=args.num_prompts,
                              speed=args.trace_speed, max_input_len=args.trace_max_input_len,
                              max_output_len=args.trace_max_output_len, seed=args.bench_seed)
    num_prompts = 100 if args.num_prompts is None else args.num_prompts
    if args.dataset_name == "random":
        return random_requests(
            vocabulary, num_prompts=num_prompts,
            input_len=args.input_len or args.random_input_len,
            output_len=args.output_len or args.random_output_len,
            range_ratio=args.random_range_ratio, prefix_len=args.random_prefix_len,
            seed=args.bench_seed)
    return prefix_repetition_requests(
        vocabulary, num_prompts=num_prompts, num_prefixes=args.prefix_repetition_num_prefixes,
        prefix_len=args.prefix_repetition_prefix_len,
        suffix_len=args.prefix_repetition_suffix_len,
        output_len=args.prefix_repetition_output_len, seed=args.bench_seed)
