"""Claim `invariance`: a request's tokens and logprobs depend on that request alone, bit for bit.

One mix of requests under everything that must not matter; a hash of all outputs for each, and the
counter that proves that it happened. With a URL, what can be asked of any OpenAI-compatible server
(invariance_server.py) instead.
"""

import contextlib
import dataclasses
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from octavo.core.messages import SchedulerStats
from octavo.core.sampling_params import SamplingParams
from octavo.engine.llm import LLM
from octavo.engine.outputs import RequestOutput
from octavo.reproduce.claim import Claim, Options, Progress
from octavo.reproduce.finding import Cell, Figure, Finding, Table

CLAIMED = ("Inference at temperature 0 is not deterministic in most engines: kernels sum in an "
           "order that depends on the batch, so an answer changes with what else is computed. "
           "Batch-invariant kernels end that.")
SOURCE = "He et al., Defeating Nondeterminism in LLM Inference, Thinking Machines 2025"
_ISA_VARIABLE = "OCTAVO_CPU_ISA"
_BLOCKS = 1024
_SHARED_PREFIX = 48  # tokens: three whole blocks
_SHOWN_HASH = 16  # hexadecimal digits


@dataclasses.dataclass(slots=True, frozen=True)
class Sizes:
    """lengths: of prompts apart. num_shared: prompts that share a beginning. max_tokens: of each
    output. tight: blocks with which the outputs do not all fit."""

    lengths: tuple[int, ...]
    num_shared: int
    max_tokens: int
    tight: int


FULL = Sizes((700, 333, 150, 120, 97, 80, 64, 49, 33, 32, 17, 16, 15, 9, 5, 3, 2, 1), 6, 64, 64)
QUICK = Sizes((100, 33, 16, 5, 1), 3, 16, 14)


@dataclasses.dataclass(slots=True, frozen=True)
class Variation:
    """Something that must not matter. options: of the engine. proof: what shows that it happened,
    and how much; 0 proves nothing. is_alone: each request by itself. repeat: runs on one engine."""

    name: str
    proof: tuple[str, Callable[[SchedulerStats, SchedulerStats], float]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_alone: bool = False
    repeat: int = 1
    isa: str | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class Row:
    """What a variation gave: a digest a request."""

    variation: Variation
    digests: list[bytes]
    proof: float

    @property
    def hash(self) -> str:
        """One for all requests."""
        return hashlib.blake2b(b"".join(self.digests), digest_size=16).hexdigest()


def variations(sizes: Sizes, isas: Sequence[str]) -> list[Variation]:
    """The first is what the others are compared with."""
    def steps(stats: SchedulerStats, alone: SchedulerStats) -> float:
        return float(stats.num_steps)

    no_cache = {"enable_prefix_caching": False}
    found = [
        Variation("each request alone", ("steps", steps), no_cache, is_alone=True),
        Variation("all at once", ("times fewer steps",
                                  lambda s, alone: alone.num_steps / s.num_steps), no_cache),
        Variation("prompts in chunks of 16 tokens",
                  ("prompts cut", lambda s, _: s.num_chunked_prefills),
                  no_cache | {"long_prefill_token_threshold": 16}),
        Variation("prefix cache, cold", ("tokens found", lambda s, _: s.prefix_cache_hits)),
        Variation("prefix cache, warm", ("tokens found", lambda s, _: s.prefix_cache_hits),
                  repeat=2),
        Variation("too little memory", ("preemptions", lambda s, _: s.num_preemptions),
                  no_cache | {"num_blocks": sizes.tight}),
        Variation("no jump-forward", ("forced tokens, drawn one by one", lambda s, alone: (
            0 if s.num_jump_forward_tokens else alone.num_jump_forward_tokens)),
            no_cache | {"jump_forward": False}),
        Variation("scheduled ahead", ("steps prepared ahead",
                                      lambda s, _: s.num_steps_scheduled_ahead),
                  no_cache | {"async_scheduling": True}),
        Variation("one thread", ("steps", steps), no_cache | {"num_threads": 1}),
    ]
    found += [Variation(f"kernels of {isa}", ("steps", steps), no_cache, isa=isa) for isa in isas]
    return found


def run(options: Options, progress: Progress) -> Finding:
    """Measures the claim. Raises OctavoError."""
    if options.url is not None:
        from octavo.reproduce.invariance_server import measure_server

        return measure_server(options.url, options, progress)
    return measure(options, QUICK if options.quick else FULL, progress)


def _check_url(options: Options) -> None:
    if options.url is not None:
        from octavo.reproduce.invariance_server import check_server

        check_server(options.url)


def measure(options: Options, sizes: Sizes, progress: Progress) -> Finding:
    """run() of the engine here, with sizes of the caller's."""
    rows: list[Row] = []
    alone = SchedulerStats()
    facts: dict[str, Cell] = {}
    plan = variations(sizes, _other_isas())
    for index, variation in enumerate(plan):
        progress.stage(variation.name, index / len(plan))
        progress.check()
        with _open(options, sizes, variation) as llm:
            prompts, params = requests(sizes, llm.get_tokenizer().vocab_size, options.seed)
            for _ in range(variation.repeat):
                outputs = _outputs(llm, prompts, params, is_alone=variation.is_alone)
            stats = llm.stats()
            facts = facts or {"model": os.path.basename(llm.config.model.path),
                              "backend": llm.config.model.backend, "KV": llm.config.cache.dtype,
                              "threads": llm.config.model.num_threads, "requests": len(prompts)}
        alone = stats if variation.is_alone else alone
        rows.append(Row(variation, [digest(one) for one in outputs],
                        variation.proof[1](stats, alone)))
    return _finding(rows, facts)


def requests(sizes: Sizes, vocab_size: int, seed: int
             ) -> tuple[list[list[int]], list[SamplingParams]]:
    """Random prompts; greedy, sampled, filtered, penalized and structured requests in turn."""
    rng = np.random.default_rng((seed, 2))
    first = 300 if vocab_size > 600 else 0
    prompts = [rng.integers(first, vocab_size, n).tolist() for n in sizes.lengths]
    prefix = rng.integers(first, vocab_size, _SHARED_PREFIX).tolist()
    prompts += [prefix + rng.integers(first, vocab_size, int(rng.integers(1, 20))).tolist()
                for _ in range(sizes.num_shared)]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 40, "presence_penalty": 0.5},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.3},
        {"temperature": 1.0, "structured_outputs": {"json": {
            "type": "object", "additionalProperties": False, "required": ["kind", "count"],
            "properties": {"kind": {"const": "record"}, "count": {"type": "integer"}}}}},
    ]
    return prompts, [
        SamplingParams(seed=1000 + i, max_tokens=sizes.max_tokens, logprobs=1, ignore_eos=True,
                       n=2 if i % 7 == 3 else 1, **kinds[i % len(kinds)])
        for i in range(len(prompts))]


def digest(output: RequestOutput) -> bytes:
    """Of the tokens and the bits of the logprobs of every sample."""
    found = hashlib.blake2b(digest_size=16)
    for sample in output.outputs:
        found.update(struct.pack("<q", len(sample.token_ids)))
        for token, listed in zip(sample.token_ids, sample.logprobs or [], strict=True):
            assert listed is not None
            found.update(struct.pack("<qd", token, listed[token].logprob))
    return found.digest()


def _outputs(llm: LLM, prompts: list[list[int]], params: list[SamplingParams], *,
             is_alone: bool) -> list[RequestOutput]:
    if not is_alone:
        return llm.generate(prompts, params, use_tqdm=False)
    return [llm.generate([prompt], one, use_tqdm=False)[0]
            for prompt, one in zip(prompts, params, strict=True)]


@contextlib.contextmanager
def _open(options: Options, sizes: Sizes, variation: Variation) -> Iterator[LLM]:
    longest = max(max(sizes.lengths), _SHARED_PREFIX + 20) + sizes.max_tokens
    arguments: dict[str, Any] = {"num_threads": options.num_threads, "num_blocks": _BLOCKS,
                                 "max_model_len": longest, "max_num_batched_tokens": 512,
                                 "max_num_seqs": 64} | variation.options
    arguments["num_blocks"] = max(arguments["num_blocks"], -(-longest // 16))
    before = os.environ.get(_ISA_VARIABLE)
    if variation.isa is not None:
        os.environ[_ISA_VARIABLE] = variation.isa
    try:
        with LLM(options.model, **arguments) as llm:
            assert variation.isa is None or variation.isa in llm.describe()["isa"]
            yield llm
    finally:
        if variation.isa is not None:
            os.environ.pop(_ISA_VARIABLE)
            if before is not None:
                os.environ[_ISA_VARIABLE] = before


def _other_isas() -> list[str]:
    """Vector instruction sets below the one that is used by itself, as far as they run here."""
    try:
        from octavo import _native
    except ImportError:
        return []
    return [isa for isa in _native.kernel_isas() if isa in ("avx2",)]


def _finding(rows: list[Row], facts: dict[str, Cell]) -> Finding:
    base = rows[0]
    table = Table("bits of the outputs", ["variation", "requests that differ", "hash", "proof"],
                  [[row.variation.name, _num_different(row, base), row.hash[:_SHOWN_HASH],
                    f"{row.proof:,.0f} {row.variation.proof[0]}"] for row in rows])
    different = sum(_num_different(row, base) for row in rows)
    unproven = [row.variation.name for row in rows if not row.proof]
    words = ("Every sum here has an order that the request alone decides (K ascending, attention "
             "in position order with fixed splits, one tree of folds), and noise is keyed by seed, "
             "sample, position and token. So no variation changes a bit, and none has to be "
             "switched off to have that.") if not different else (
             "Outputs differ: this is a bug of Octavo. Please report it with this table.")
    if unproven:
        words += f" Not shown to have happened here: {', '.join(unproven)}."
    return Finding(
        name="invariance", title="a request gives the same bits whatever happens beside it",
        claimed=CLAIMED, source=SOURCE, tables=[table], diagrams=[], explanation=words,
        figures=[Figure("outputs that differ, of all variations", different, "", 0,
                        at_least=False),
                 Figure("variations that are proven by a counter",
                        len(rows) - len(unproven), f"of {len(rows)}", None)],
        facts=facts, identical_outputs=not different,
        raw={"hashes": {row.variation.name: row.hash for row in rows}})


def _num_different(row: Row, base: Row) -> int:
    return sum(a != b for a, b in zip(row.digests, base.digests, strict=True))


CLAIM = Claim("invariance", "the same bits alone, in batches, chunks, caches, after preemption "
              "(--url: asked of any server)", run, takes=("url",),
              check_input=_check_url)
