"""`python -m benchmarks.mask_cost`: what structured output costs the processor.

Objects of the fifty schemas of tests/grammar/schemas.py at temperature 1, 32 requests at a time.
The cost is the CPU time in which the engine takes drawn tokens into their grammars and makes the
next masks, as a share of all CPU time of the process; jumped tokens count as tokens. Exits 1 where
the share is above the goal.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import facts, model_path, parser, write_json
from octavo import LLM, SamplingParams
from octavo.core.structured_outputs import StructuredOutputs
from octavo.grammar.manager import GrammarManager
from tests.grammar.schemas import SCHEMAS

GOAL = 0.05
BATCH = 32


class Stopwatch:
    """CPU time of the calling thread within GrammarManager's work of a step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._plain = {name: getattr(GrammarManager, name) for name in ("with_masks", "advance")}

    def __enter__(self) -> "Stopwatch":
        for name, call in self._plain.items():
            setattr(GrammarManager, name, self._timed(call))
        return self

    def __exit__(self, *exc: object) -> None:
        for name, call in self._plain.items():
            setattr(GrammarManager, name, call)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            before = time.thread_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.thread_time() - before

        return timed


def main(argv: list[str] | None = None) -> int:
    """Entry point; 1 where masks cost too much."""
    made = parser("mask_cost", __doc__)
    made.add_argument("--schemas", default=",".join(SCHEMAS), metavar="NAMES",
                      help="some of the fifty, by commas (default: all)")
    made.add_argument("--objects", type=int, default=4, metavar="N", help="of each schema")
    made.add_argument("--max-tokens", type=int, default=300, metavar="N", help="of an object")
    args = made.parse_args(argv)
    before = os.getloadavg()[0]
    names = args.schemas.split(",")
    with (Stopwatch() as watch,
          LLM(model_path(args.model), max_model_len=1024, max_num_seqs=BATCH,
              num_threads=args.threads) as llm):
        _run(llm, names, 1, args.max_tokens, seed=0)  # compiles
        watch.seconds, started = 0.0, time.process_time()
        tokens = _run(llm, names, args.objects, args.max_tokens, seed=1000)
        spent = time.process_time() - started
    share = watch.seconds / spent
    print(f"{len(names)} schemas, {args.objects} objects each, {BATCH} at a time: {tokens} tokens, "
          f"{spent / tokens * 1e6:.0f} us of CPU time a token\n"
          f"masks: {watch.seconds / tokens * 1e6:.1f} us a token, {share:.2%} (goal {GOAL:.0%})")
    write_json(args.json, "mask-cost", {
        "facts": facts(before), "model": model_path(args.model), "threads": args.threads,
        "schemas": names, "tokens": tokens, "cpu_s": spent, "mask_cpu_s": watch.seconds,
        "share": share, "goal": GOAL})
    return int(share > GOAL)


def _run(llm: LLM, names: list[str], count: int, max_tokens: int, *, seed: int) -> int:
    """Tokens of all outputs."""
    prompts = [[{"role": "user", "content": f"Write one short JSON object: {name}."}]
               for name in names]
    params = [SamplingParams(temperature=1.0, n=count, seed=seed + index, max_tokens=max_tokens,
                             structured_outputs=StructuredOutputs(json=SCHEMAS[name]))
              for index, name in enumerate(names)]
    outputs = llm.chat(prompts, params, use_tqdm=False)
    return sum(len(part.token_ids) for output in outputs for part in output.outputs)


if __name__ == "__main__":
    sys.exit(main())
