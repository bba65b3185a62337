"""`python -m benchmarks.shared_prefix`: many sequences over one prefix, shared or copied.

Decode of N sequences whose prompts begin with the same tokens: over one set of KV blocks, and with
the prefix cache off over N copies of them; the shared ones with merged reads of shared blocks, and
without. The tokens drawn must be the same in every variant. Variants alternate.
"""

import contextlib
import dataclasses
import os
import statistics
import sys
from typing import Any

from benchmarks.common import facts, model_path, parser, write_json
from octavo.bench.engine_bench import Case, EngineBench, Generation, Run
from octavo.config_resolve import EngineArgs
from octavo.engine.factory import resolve_args

_SUFFIX_TOKENS = 16


@dataclasses.dataclass(slots=True, frozen=True)
class Variant:
    """One engine."""

    name: str
    enable_prefix_caching: bool
    merge_shared_prefix: bool


# shared first, private last
VARIANTS = (
    Variant("shared", enable_prefix_caching=True, merge_shared_prefix=True),
    Variant("shared, reads not merged", enable_prefix_caching=True, merge_shared_prefix=False),
    Variant("private", enable_prefix_caching=False, merge_shared_prefix=True),
)


def main(argv: list[str] | None = None) -> int:
    """Entry point; 1 when the outputs differ."""
    made = parser("shared_prefix", __doc__)
    made.add_argument("--sequences", type=int, default=32, metavar="N")
    made.add_argument("--prefix", type=int, default=1024, metavar="TOKENS")
    made.add_argument("--tokens", type=int, default=32, metavar="N", help="of a window")
    made.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="windows")
    args = made.parse_args(argv)
    before = os.getloadavg()[0]
    context = args.prefix + _SUFFIX_TOKENS
    total = (args.repetitions + 1) * args.tokens
    case = Case("tg", total, args.sequences, context)
    with contextlib.ExitStack() as stack:
        benches = [(variant, stack.enter_context(_bench(args, variant, case)))
                   for variant in VARIANTS]
        outcome = _measure(benches, case, args.prefix, args.tokens, args.repetitions)
    write_json(args.json, "shared-prefix", {
        "facts": facts(before), "model": model_path(args.model), "threads": args.threads,
        "sequences": args.sequences, "prefix": args.prefix, "context": context, **outcome})
    print(text(outcome, args.sequences, args.prefix))
    return 0 if outcome["bit_identical"] else 1


def _bench(args: Any, variant: Variant, case: Case) -> EngineBench:
    blocks = case.sequences * (-(-(case.context + case.tokens) // 16) + 8)
    wanted = EngineArgs(model=model_path(args.model), num_threads=args.threads,
                        max_num_seqs=case.sequences, max_model_len=case.context + case.tokens + 64,
                        allow_long_max_model_len=True, num_blocks=blocks,
                        merge_shared_prefix=variant.merge_shared_prefix)
    return EngineBench(resolve_args(wanted).config,
                       enable_prefix_caching=variant.enable_prefix_caching)


def _measure(benches: list[tuple[Variant, EngineBench]], case: Case, prefix_len: int, tokens: int,
             repetitions: int) -> dict[str, Any]:
    first = benches[0][1]
    prefix = first.prompt(prefix_len)
    prompts = [prefix + first.prompt(_SUFFIX_TOKENS) for _ in range(case.sequences)]
    running: dict[str, tuple[EngineBench, Generation]] = {}
    for variant, bench in benches:
        if variant.enable_prefix_caching:
            bench.run(Case("pp", prefix_len), [prefix])  # into the cache
        running[variant.name] = bench, bench.generate(prompts, case.tokens)
    runs: dict[str, list[Run]] = {name: [] for name in running}
    for repetition in range(repetitions + 1):
        for name, (_, generation) in running.items():
            run = generation.window(tokens)
            if repetition:  # the first one warms caches
                runs[name].append(run)
    outputs = {name: list(generation.token_ids.values()) for name, (_, generation)
               in running.items()}
    for _, generation in running.values():
        generation.end()
    shortest = min(len(ids) for found in outputs.values() for ids in found)
    heads = [[ids[:shortest] for ids in found] for found in outputs.values()]
    rates = {name: statistics.median(run.tokens / run.seconds for run in found)
             for name, found in runs.items()}
    return {
        "rates": rates,
        "tokens_per_cpu_s": {name: statistics.median(run.tokens / max(run.cpu_s, 1e-9)
                                                     for run in found)
                             for name, found in runs.items()},
        "ratio": max(rate for name, rate in rates.items() if name != "private")
        / rates["private"],
        "bit_identical": all(head == heads[0] for head in heads),
        "tokens_compared": shortest * case.sequences,
        "samples": {name: [dataclasses.asdict(run) for run in found]
                    for name, found in runs.items()},
    }


def text(outcome: dict[str, Any], sequences: int, prefix: int) -> str:
    """For people."""
    lines = [f"| {sequences} sequences over a prefix of {prefix} | tok/s | per CPU-second |",
             "|---|---:|---:|"]
    lines += [f"| {name} | {rate:.0f} | {outcome['tokens_per_cpu_s'][name]:.0f} |"
              for name, rate in outcome["rates"].items()]
    same = "the same" if outcome["bit_identical"] else "NOT the same"
    lines.append(f"\nshared against private: {outcome['ratio']:.2f}x; {same} "
                 f"{outcome['tokens_compared']} tokens in every variant")
    if len(outcome["rates"]) == 2:
        lines.append("this engine has no switch for merged reads")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
