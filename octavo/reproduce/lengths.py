"""Lengths of requests as in production: from a trace file, or from the quantiles of one.

Token ids are random: only lengths matter here.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from octavo.bench.datasets import BenchRequest, Vocabulary, trace_requests
from octavo.reproduce.claim import Options

BUILT_IN_SOURCE = ("quantiles of the Azure LLM inference trace 2023, conversation (19,366 "
                   "requests; Patel et al., Splitwise, ISCA 2024; CC-BY 4.0)")
# ids below this are control tokens in many vocabularies
_FIRST_ID = 300
_PERCENT = (0, 1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 97, 99,
            99.5, 99.9, 100)
# of that trace at those percentages; prompt and output lengths are all but independent in it
# (rank correlation 0.07), so they are drawn apart
_PROMPT_LENS = (2, 29, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130,
                1189, 1315, 1876, 2734, 4083, 4090, 4142, 4831, 6179, 14050)
_OUTPUT_LENS = (7, 16, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400,
                411, 424, 451, 509, 601, 643, 954, 1000)


@dataclasses.dataclass(slots=True, frozen=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    output: int


def production_lengths(options: Options, count: int) -> tuple[list[Lengths], str]:
    """Lengths of `count` requests and where they are from: the first ones of options.trace, or
    draws from the built-in quantiles, one from each of `count` equal shares of the distribution,
    in random order, so that few draws have its shape too. Raises ConfigError for a trace that
    cannot be read."""
    if options.trace is not None:
        found = trace_requests(options.trace, Vocabulary(2), num_prompts=count)
        return ([Lengths(len(r.prompt_token_ids), r.max_tokens) for r in found],
                f"the first {len(found)} requests of {options.trace.name}")
    rng = np.random.default_rng(options.seed)
    prompts, outputs = (
        np.interp((rng.permutation(count) + 0.5) / count * 100, _PERCENT, table)
        for table in (_PROMPT_LENS, _OUTPUT_LENS))
    return ([Lengths(round(float(p)), round(float(o))) for p, o in zip(prompts, outputs)],
            BUILT_IN_SOURCE)


def check_trace(options: Options) -> None:
    """Raises ConfigError for a trace that cannot be read."""
    production_lengths(options, 1)


def cut(lengths: Sequence[Lengths], *, prompt: int, output: int) -> list[Lengths]:
    """Every length at most that."""
    return [Lengths(min(one.prompt, prompt), min(one.output, output)) for one in lengths]


def scaled(lengths: Sequence[Lengths], longest: int) -> tuple[list[Lengths], float]:
    """All lengths times one factor of at most 1, with which the longest request is `longest`
    tokens; and the factor."""
    factor = min(1.0, longest / max(one.prompt + one.output for one in lengths))
    return [Lengths(max(1, int(factor * one.prompt)), max(1, int(factor * one.output)))
            for one in lengths], factor


def random_prompts(lengths: Sequence[Lengths], vocab_size: int, *,
                   seed: int) -> list[BenchRequest]:
    """Requests of these lengths with random prompts."""
    rng = np.random.default_rng((seed, 1))
    vocabulary = Vocabulary(vocab_size, _FIRST_ID if vocab_size > 2 * _FIRST_ID else 0)
    return [BenchRequest(vocabulary.draw(rng, one.prompt), one.output) for one in lengths]
