"""Claim `paged`: KV memory in blocks against contiguous reservations (Kwon et al., SOSP'23).

The same requests, the same kernels, the same KV memory; only who gets which blocks differs
(reservation.py). Block sizes that the kernels do not take are simulated over the real scheduler.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

from octavo.bench.plot import Bars, BlockMap, Curve, Diagram, Panel
from octavo.config import EngineConfig
from octavo.config_resolve import EngineArgs
from octavo.core.messages import EngineCoreRequest
from octavo.engine.core import EngineCore
from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.arms import take_turns
from octavo.reproduce.claim import (
    Claim,
    Engine,
    MakeManager,
    Options,
    Progress,
    open_engines,
)
from octavo.reproduce.engine_arm import EngineArm, StepSample, greedy_request, same_outputs
from octavo.reproduce.finding import Cell, Figure, Finding, Table
from octavo.reproduce.lengths import check_trace, cut, production_lengths, random_prompts
from octavo.reproduce.reservation import (
    ReservingKVCacheManager,
    reserve_max,
    reserve_oracle,
    reserve_pow2,
)
from octavo.scheduler.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor

_MAX, _POW2, _ORACLE = "contiguous, max", "contiguous, pow2", "contiguous, oracle"
_BASELINES = {_MAX: reserve_max, _POW2: reserve_pow2, _ORACLE: reserve_oracle}
_PAGED = "paged, block 16"
_BLOCK = 16
_MAX_NUM_SEQS = 128  # memory alone bounds how many run at once
_SIMULATED_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# Steps of counts this near (a share of the count) tell one rate: over so little the rate bends by
# less than a disturbed moment moves it.
_NEIGHBOURS = 0.25
_KINDS = ["tokens", "tokens and unused slots", "reserved, still empty"]


@dataclasses.dataclass(slots=True, frozen=True)
class Sizes:
    """How much is run. num_slots: KV memory of each arm, in tokens; a power of two, as
    max_model_len is, so that the buddy allocator rounds neither up. measured_blocks: block sizes
    run on the engine; memories: other numbers of slots; both with the first num_sweep_requests
    requests."""

    num_slots: int
    max_model_len: int
    max_prompt: int
    max_output: int
    num_requests: int
    num_sweep_requests: int
    measured_blocks: tuple[int, ...]
    memories: tuple[int, ...]


# 4,096 slots hold two of the longest requests (2,048 tokens, the longest in the paper, too): enough
# to measure a baseline, little enough that 64 requests fill the memory several times over. Prompts
# are cut to 128 tokens: a CPU computes a prompt token in half the time of an output token, a GPU
# in a hundredth, and whole prompts would hide the decoding that the paper measures.
FULL = Sizes(4096, 2048, 128, 1024, 64, 24, (16, 32, 64, 128, 256), (2048, 8192))
QUICK = Sizes(1024, 512, 32, 96, 16, 8, (16, 64), (512,))


@dataclasses.dataclass(slots=True, frozen=True)
class Use:
    """Means over the steps in which requests waited for memory. In tokens and requests."""

    live: float
    allocated: float
    running: float
    peak_running: int

    @property
    def percent(self) -> float:
        """Of the allocated slots, how many hold tokens."""
        return 100 * self.live / self.allocated if self.allocated else 0.0


def use_of(samples: Sequence[StepSample]) -> Use:
    """Of the steps behind which somebody waited; of all steps where nobody ever did."""
    full = [s for s in samples if s.num_waiting] or list(samples)
    return Use(
        live=statistics.fmean(s.live_tokens for s in full),
        allocated=statistics.fmean(s.allocated_slots for s in full),
        running=statistics.fmean(s.num_running for s in full),
        peak_running=max(s.num_running for s in samples),
    )


def num_computed_again(arm: EngineArm) -> int:
    """Tokens whose KV was computed again after a preemption."""
    once = sum(len(r.request.prompt_token_ids) + len(r.token_ids) - 1
               for r in arm.records.values())
    return sum(sample.num_tokens for sample in arm.samples) - once


def decode_rates(samples: Sequence[StepSample]) -> dict[int, float]:
    """Tokens a second of steps that only decode, by the number of their requests: each the median
    of at least five steps of that and of neighbouring counts, since the steps of one count may all
    lie in one slow moment."""
    by_count: dict[int, list[float]] = {}
    # Samples are taken behind a step, when what ended in it is gone and its tokens are not: such a
    # step is left out, and so is one with a prompt.
    for sample in samples:
        if 0 < sample.num_tokens == sample.num_running:
            by_count.setdefault(sample.num_running, []).append(
                sample.num_running / sample.seconds)
    pools = {n: [rate for m, rates in by_count.items() if abs(m - n) <= _NEIGHBOURS * n
                 for rate in rates]
             for n in sorted(by_count)}
    return {n: statistics.median(pool) for n, pool in pools.items() if len(pool) >= 5}


def nearest(rates: dict[int, float], count: float) -> tuple[int, float]:
    """The measured count nearest to `count`, and its rate; NaN where nothing was measured."""
    if not rates:
        return round(count), float("nan")
    found = min(rates, key=lambda n: abs(n - count))
    return found, rates[found]


def run(options: Options, progress: Progress) -> Finding:
    """Measures the claim. Raises OctavoError."""
    return measure(options, QUICK if options.quick else FULL, progress)


def measure(options: Options, sizes: Sizes, progress: Progress) -> Finding:
    """run() with sizes of the caller's."""
    maps: dict[str, list[int]] = {}
    progress.stage("loading", 0.0)
    managers: list[MakeManager] = [
        functools.partial(ReservingKVCacheManager, reserve=reserve(sizes.max_model_len))
        for reserve in _BASELINES.values()]
    args = _args(options, sizes)
    with open_engines(*[args] * (len(managers) + 1),
                      kv_cache_managers=[*managers, KVCacheManager]) as engines:
        requests, source = _requests(options, sizes, engines[0].vocab_size)
        arms = [_watched(name, engine, maps, progress)
                for name, engine in zip([*_BASELINES, _PAGED], engines, strict=True)]
        _in_turns("contiguous and paged, in turns", arms, requests, progress, (0.02, 0.5))
        facts = engines[0].facts() | _facts(sizes, arms, source)
        config = engines[0].config
    few = requests[: sizes.num_sweep_requests]
    with open_engines(*[_args(options, sizes, block_size=size)
                        for size in sizes.measured_blocks]) as engines:
        sweep = [EngineArm(str(size), engine.core, after_step=progress.check)
                 for size, engine in zip(sizes.measured_blocks, engines, strict=True)]
        _in_turns("block sizes, in turns", sweep, few, progress, (0.5, 0.7))
    memories = _memories(options, sizes, few, managers[0], progress)
    simulated = _simulated_sweep(config, sizes, requests, progress)
    assert same_outputs(arms), "contiguous and paged memory differ in what is generated"
    assert same_outputs([*sweep, *(arm for pair in memories.values() for arm in pair)]), (
        "block sizes or memories differ in what is generated")
    return _finding(Measured(sizes, arms, sweep, memories, simulated, maps), facts)


def _args(options: Options, sizes: Sizes, *, block_size: int = _BLOCK,
          num_slots: int | None = None) -> EngineArgs:
    return dataclasses.replace(
        options.engine(), num_blocks=(num_slots or sizes.num_slots) // block_size,
        block_size=block_size, max_model_len=sizes.max_model_len, max_num_seqs=_MAX_NUM_SEQS)


def _memories(options: Options, sizes: Sizes, requests: Sequence[EngineCoreRequest],
              contiguous: MakeManager,
              progress: Progress) -> dict[int, tuple[EngineArm, EngineArm]]:
    """Contiguous (max) and paged in other amounts of memory, each pair in turns."""
    found = {}
    for i, num_slots in enumerate(sizes.memories):
        args = _args(options, sizes, num_slots=num_slots)
        with open_engines(args, args, kv_cache_managers=[contiguous, KVCacheManager]) as engines:
            pair = [EngineArm(name, engine.core, after_step=progress.check)
                    for name, engine in zip((_MAX, _PAGED), engines, strict=True)]
            share = 0.25 / len(sizes.memories)
            _in_turns(f"{num_slots:,} slots, in turns", pair, requests, progress,
                      (0.7 + i * share, 0.7 + (i + 1) * share))
        found[num_slots] = pair[0], pair[1]
    return found


def _requests(options: Options, sizes: Sizes,
              vocab_size: int) -> tuple[list[EngineCoreRequest], str]:
    lengths, source = production_lengths(options, sizes.num_requests)
    lengths = cut(lengths, prompt=sizes.max_prompt, output=sizes.max_output)
    prompts = random_prompts(lengths, vocab_size, seed=options.seed)
    return [greedy_request(f"r{i}", one.prompt_token_ids, one.max_tokens)
            for i, one in enumerate(prompts)], source


def _in_turns(what: str, arms: Sequence[EngineArm], requests: Sequence[EngineCoreRequest],
              progress: Progress, share: tuple[float, float]) -> None:
    """All arms over all requests. share: of the claim, before and after."""
    progress.stage(what, share[0])
    for arm in arms:
        arm.add(requests)
    total = len(arms) * sum(r.max_tokens for r in requests)
    take_turns(arms, after_round=lambda: progress.advance(
        share[0] + (share[1] - share[0]) * sum(arm.num_output_tokens for arm in arms) / total))


def _watched(name: str, engine: Engine, maps: dict[str, list[int]],
             progress: Progress) -> EngineArm:
    """An arm that puts its blocks into `maps` when half of its requests are done."""
    arm = EngineArm(name, engine.core)

    def after_step() -> None:
        progress.check()
        last = arm.samples[-1]
        finished = len(arm.records) - last.num_running - last.num_waiting
        # between decode steps every token but the last one drawn is in the cache
        if name not in maps and 2 * finished >= len(arm.records) and (
            last.num_tokens == last.num_running
        ):
            maps[name] = block_map(engine.kv, arm)

    arm.after_step = after_step
    return arm


def block_map(kv: KVCacheManager, arm: EngineArm) -> list[int]:
    """What is in each block between two decode steps: an index into _KINDS, -1 where nobody holds
    it. A block that is held and full counts as tokens."""
    cells = [-1] * kv.num_blocks
    for request_id, table in kv._tables.items():
        record = arm.records[request_id]
        num_tokens = len(record.request.prompt_token_ids) + len(record.token_ids) - 1
        for i, block in enumerate(table.blocks):
            used = num_tokens - i * kv.block_size
            cells[block.block_id] = 2 if used <= 0 else 1 if used < kv.block_size else 0
    return cells


def _simulated_sweep(config: EngineConfig, sizes: Sizes, requests: Sequence[EngineCoreRequest],
                     progress: Progress) -> dict[int, Use]:
    """Use by block size, of the real scheduler over an executor that computes nothing."""
    progress.stage("block sizes, simulated", 0.95)
    found = {}
    for block_size in _SIMULATED_BLOCKS:
        if 2 * block_size > sizes.max_model_len:
            continue
        num_blocks = sizes.num_slots // block_size
        kv = KVCacheManager(dataclasses.replace(config.cache, block_size=block_size,
                                                num_blocks=num_blocks), b"simulated")
        executor = FakeExecutor(num_blocks=num_blocks, block_size=block_size, vocab_size=2,
                                check_kv=False)
        arm = EngineArm(str(block_size), EngineCore(Scheduler(config.scheduler, kv), executor),
                        after_step=progress.check)
        arm.add(requests)
        arm.run()
        found[block_size] = use_of(arm.samples)
    return found


@dataclasses.dataclass(slots=True, frozen=True)
class Measured:
    """All that was run. sweep: by block size; memories: contiguous and paged, by slots; simulated:
    by block size; maps: what was in each arm's blocks."""

    sizes: Sizes
    arms: list[EngineArm]
    sweep: list[EngineArm]
    memories: dict[int, tuple[EngineArm, EngineArm]]
    simulated: dict[int, Use]
    maps: dict[str, list[int]]

    @property
    def uses(self) -> dict[str, Use]:
        return {arm.name: use_of(arm.samples) for arm in self.arms}

    @property
    def rates(self) -> dict[str, float]:
        return {arm.name: arm.rate for arm in self.arms}

    @property
    def decode(self) -> dict[int, float]:
        return decode_rates([sample for arm in self.arms for sample in arm.samples])


def _finding(run: Measured, facts: dict[str, Cell]) -> Finding:
    uses, rates = run.uses, run.rates
    paged, contiguous = uses[_PAGED], uses[_MAX]
    return Finding(
        name=CLAIM.name, title=CLAIM.title,
        claimed="of the KV memory, tokens take 20.4 % (contiguous, longest sequence), 26.8 % "
                "(powers of two) and 38.2 % (lengths known), 96.3 % in blocks; 2 to 4 times the "
                "throughput at the same latency",
        source="Kwon et al., Efficient Memory Management for Large Language Model Serving with "
               "PagedAttention, SOSP 2023, arXiv:2309.06180, abstract and figure 2",
        figures=[
            Figure("use of allocated KV memory, paged", paged.percent, "%", 96.0),
            Figure(f"use of allocated KV memory, {_MAX}", contiguous.percent, "%", 40.0,
                   at_least=False),
            Figure(f"requests at once, paged over {_MAX}", paged.running / contiguous.running,
                   "x", 2.0),
            Figure(f"throughput, paged over {_MAX}", rates[_PAGED] / rates[_MAX], "x", 2.0),
            Figure(f"throughput, paged over {_ORACLE}", rates[_PAGED] / rates[_ORACLE], "x"),
        ],
        tables=[_arm_table(run), _decode_table(run), _memory_table(run), _sweep_table(run)],
        diagrams=_diagrams(run), explanation=_explanation(run), facts=facts,
        identical_outputs=True,
        raw={"samples": {arm.name: [dataclasses.astuple(s) for s in arm.samples]
                         for arm in run.arms}},
    )


def _arm_table(run: Measured) -> Table:
    rows: list[list[Cell]] = []
    for arm in run.arms:
        use = run.uses[arm.name]
        finished = [record.finished_s for record in arm.records.values()]
        rows.append([arm.name, use.percent, 100 * use.live / run.sizes.num_slots, use.running,
                     use.peak_running, num_computed_again(arm), arm.rate,
                     arm.num_output_tokens / arm.cpu_s, statistics.fmean(finished)])
    return Table(
        f"{run.sizes.num_requests} requests at once into {run.sizes.num_slots:,} KV slots, "
        f"max_model_len {run.sizes.max_model_len:,}",
        ["KV memory", "% of allocated", "% of all", "running", "peak", "recomputed", "tok/s",
         "tok/CPU-s", "mean latency, s"], rows)


def _decode_table(run: Measured) -> Table:
    shown = [n for n in run.decode if n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    return Table("Decode steps of all arms, medians over neighbouring counts",
                 ["requests in the step", "ms", "tok/s"],
                 [[str(n), 1e3 * n / run.decode[n], run.decode[n]] for n in shown])


def _memory_table(run: Measured) -> Table:
    rows: list[list[Cell]] = []
    for num_slots, (contiguous, paged) in run.memories.items():
        uses = use_of(contiguous.samples), use_of(paged.samples)
        rows.append([f"{num_slots:,}", uses[0].running, uses[1].running,
                     uses[1].running / uses[0].running, contiguous.rate, paged.rate,
                     paged.rate / contiguous.rate])
    return Table(f"Other memories, {run.sizes.num_sweep_requests} requests",
                 ["KV slots", _MAX, "paged", "x", f"{_MAX}, tok/s", "paged, tok/s", "x"], rows)


def _sweep_table(run: Measured) -> Table:
    rates = {int(arm.name): arm.rate for arm in run.sweep}
    return Table(
        f"Block sizes: simulated use, {run.sizes.num_requests} requests; measured tok/s, "
        f"{run.sizes.num_sweep_requests} requests",
        ["block size", "% of allocated", "% of all", "running", "tok/s"],
        [[str(size), use.percent, 100 * use.live / run.sizes.num_slots, use.running,
          rates.get(size)] for size, use in run.simulated.items()])


def _diagrams(run: Measured) -> list[Diagram]:
    names, uses = [arm.name for arm in run.arms], run.uses
    return [
        BlockMap("KV memory when half of the requests are done (grey: free)", _KINDS,
                 [(name, run.maps[name]) for name in names if name in run.maps]),
        Bars("Use of allocated KV memory", "%", names,
             [("hold tokens", [uses[name].percent for name in names])]),
        Bars("Requests at once", "mean", names,
             [("running", [uses[name].running for name in names])]),
        Panel("Decode throughput", "requests in the step",
              [Curve("measured", [(float(n), rate) for n, rate in run.decode.items()])], "tok/s"),
        Panel("Block size: use", "tokens a block",
              [Curve("simulated", [(float(n), use.percent) for n, use in run.simulated.items()])],
              "% of allocated", is_log_x=True),
        Panel("Block size: throughput", "tokens a block",
              [Curve("measured", [(float(arm.name), arm.rate) for arm in run.sweep])], "tok/s",
              is_log_x=True),
    ]


def _explanation(run: Measured) -> str:
    """From the run's own figures."""
    paged, contiguous = run.uses[_PAGED], run.uses[_MAX]
    few, few_rate = nearest(run.decode, contiguous.running)
    many, many_rate = nearest(run.decode, paged.running)
    prompts_s = {arm.name: sum(s.seconds for s in arm.samples if s.num_tokens > s.num_running)
                 for arm in run.arms}
    clock_s = {arm.name: arm.clock_s for arm in run.arms}
    (last,) = (arm for arm in run.arms if arm.name == _PAGED)
    return (
        f"A paged request wastes half a block on average, here {100 - paged.percent:.1f} % of what "
        "is allocated; a reservation for the longest sequence wastes what a request does not "
        f"become. So {paged.running:.1f} requests run at once instead of {contiguous.running:.1f}. "
        f"{_decode_sentence((few, few_rate), (many, many_rate))} Steps with prompt "
        f"tokens take {prompts_s[_PAGED]:.1f} of {clock_s[_PAGED]:.1f} s (paged) and "
        f"{prompts_s[_MAX]:.1f} of {clock_s[_MAX]:.1f} s (contiguous): more requests at once make "
        "a prompt no shorter, and who is admitted without a reservation may lose its blocks: "
        f"{last.core.stats().num_preemptions} preemptions cost {num_computed_again(last):,} tokens "
        "computed again. The longest sequence is the paper's, 2,048 tokens, in the full run; its "
        "requests are longer (ShareGPT: 499 tokens in the mean), so its reservations are used "
        "better."
    )


def _decode_sentence(few: tuple[int, float], many: tuple[int, float]) -> str:
    """What a step of more requests gains: a cause only where the figures show the effect. Each:
    requests, tok/s."""
    gain, more = many[1] / few[1], many[0] / few[0]
    if math.isnan(gain) or more <= 1:
        return "Too few steps only decode to say what more requests in a step gain."
    rates = (f"teps that only decode give {few[1]:,.0f} tok/s with {few[0]} requests and "
             f"{many[1]:,.0f} with {many[0]} ({gain:.2f}x)")
    if gain <= 1:
        return (f"S{rates}: this run was disturbed, since more requests in a step cost no "
                "throughput.")
    if gain >= more:
        return f"S{rates}."
    return (f"Throughput follows less far: s{rates}, because this processor soon spends more on "
            "each request's arithmetic than on reading the weights, which all requests share; a "
            "GPU gets there at hundreds of requests.")


def _facts(sizes: Sizes, arms: list[EngineArm], source: str) -> dict[str, Cell]:
    requests = [record.request for record in arms[0].records.values()]
    facts: dict[str, Cell] = {
        "lengths": source,
        "prompt tokens, mean": statistics.fmean(len(r.prompt_token_ids) for r in requests),
        "output tokens, mean": statistics.fmean(r.max_tokens for r in requests),
        "prompts cut to": sizes.max_prompt, "outputs cut to": sizes.max_output,
    }
    for arm in arms:
        facts[f"preemptions, {arm.name}"] = arm.core.stats().num_preemptions
        facts[f"steps, {arm.name}"] = len(arm.samples)
    return facts


CLAIM = Claim("paged", "paged KV blocks against contiguous reservations, at equal memory", run,
              takes=("trace",), check_input=check_trace)
