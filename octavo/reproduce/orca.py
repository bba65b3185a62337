"""Claim `orca`: iteration-level scheduling against static batches, on the same engine.

Three arms take turns: the engine's scheduler (a finished request's place is taken in the next
step); static batches whose finished requests cost nothing (the kindest baseline there is); static
batches whose finished requests are computed until the longest ends, as in the system that the
paper compares with.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from octavo.bench.datasets import BenchRequest
from octavo.bench.load import arrival_times
from octavo.bench.plot import Bars, Curve, Diagram, Panel
from octavo.bench.stats import percentile
from octavo.engine.factory import resolve_args
from octavo.reproduce.arms import keep_pace
from octavo.reproduce.claim import Claim, Engine, Options, Progress, open_engines
from octavo.reproduce.driver import Arrival, CoreDriver, StaticBatch, StepRecord
from octavo.reproduce.finding import Cell, Figure, Finding, Table, number
from octavo.reproduce.lengths import (
    Lengths,
    check_trace,
    cut,
    production_lengths,
    random_prompts,
    scaled,
)

CLAIMED = ("Scheduling in every iteration instead of once a request gives 36.9 times the "
           "throughput of FasterTransformer at equal latency (GPT-3 175B)")
SOURCE = ("Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, "
          "OSDI 2022")
ITERATION = "iteration-level"
FREE = "static, rows free"
PADDED = "static, rows computed"
ARMS = (ITERATION, FREE, PADDED)
_TARGET = 2.0
_SHORT_PROMPT = 64  # tokens: decode dominates
_BLOCK = 16
_MIN_BATCHES = 3  # before the last of them is a small part
_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)


@dataclasses.dataclass(slots=True, frozen=True)
class Sizes:
    """How much is run. slots: places in the batch; full_slots: for full lengths, whose prompts
    leave less memory and time for many. rates: of the iteration-level arm's saturated throughput.
    scale: all lengths are multiplied by it."""

    slots: int = 32
    num_saturated: int = 96
    num_at_rate: int = 24
    rates: tuple[float, ...] = (0.4, 0.8)
    full_slots: int = 6
    num_full: int = 18
    scale: float = 1.0


FULL = Sizes()
QUICK = Sizes(slots=8, num_saturated=24, num_at_rate=10, rates=(0.6,), full_slots=4,
              num_full=12, scale=0.1)


@dataclasses.dataclass(slots=True, frozen=True)
class Load:
    """One workload. rate: requests a second, inf: all at once."""

    name: str
    arrivals: list[Arrival]
    slots: int
    rate: float = math.inf


@dataclasses.dataclass(slots=True, frozen=True)
class ArmResult:
    """One arm under one load. saturated_rate: output tokens a second in the steady state, NaN where
    there is none. wasted: share of the places held or waited for that no unfinished request had.
    """

    arm: str
    tokens_per_s: float
    saturated_rate: float
    mean_latency_s: float
    p99_latency_s: float
    wasted: float
    num_steps: int
    num_rows: int  # computed by all steps together
    num_wanted: int  # output tokens
    seconds: float


@dataclasses.dataclass(slots=True, frozen=True)
class LoadResult:
    """All arms under one load, and the steps of each."""

    load: Load
    arms: dict[str, ArmResult]
    steps: dict[str, list[StepRecord]]
    is_identical: bool


def run(options: Options, progress: Progress) -> Finding:
    """Measures the claim. Raises OctavoError."""
    return measure(options, QUICK if options.quick else FULL, progress)


def measure(options: Options, sizes: Sizes, progress: Progress) -> Finding:
    """run() with sizes of the caller's."""
    progress.stage("loading", 0.0)
    model_len = resolve_args(options.engine()).config.model.max_model_len
    lengths, origin = production_lengths(options, max(sizes.num_saturated, sizes.num_full))
    decode, full, factor = _shapes(lengths, sizes, model_len)
    args = dataclasses.replace(
        options.engine(), max_num_seqs=sizes.slots, max_prefill_beside_decodes=0,
        num_blocks=_num_blocks((*decode, *full), sizes.slots, model_len))
    with open_engines(*[args] * len(ARMS)) as engines:
        facts = engines[0].facts() | {
            "lengths": origin, "places in the batch": sizes.slots,
            "full lengths times": round(factor, 3)}
        runner = _Runner(engines, sizes, options.seed, progress)
        runner.warm_up()
        vocab = engines[0].vocab_size
        results = runner.run_all(
            arrivals_of(random_prompts(decode, vocab, seed=options.seed)),
            arrivals_of(random_prompts(full, vocab, seed=options.seed + 1)))
    return _finding(results, facts, factor)


def _shapes(lengths: Sequence[Lengths], sizes: Sizes,
            model_len: int) -> tuple[list[Lengths], list[Lengths], float]:
    """Lengths of the decode-dominated run and of the full one, and the factor of the latter's."""
    wanted = [Lengths(max(1, round(one.prompt * sizes.scale)),
                      max(1, round(one.output * sizes.scale))) for one in lengths]
    prompt = max(1, round(_SHORT_PROMPT * sizes.scale))
    short = cut(wanted, prompt=min(prompt, model_len // 4), output=model_len)
    most = max(one.output for one in short)
    room = model_len - max(one.prompt for one in short) - 1
    shrink = min(1.0, room / most)  # a short context keeps the shape of the distribution
    decode = [Lengths(one.prompt, max(1, int(one.output * shrink))) for one in short]
    full, factor = scaled(wanted[:sizes.num_full], model_len - 1)
    return decode[:sizes.num_saturated], full, factor


def _num_blocks(lengths: Sequence[Lengths], slots: int, model_len: int) -> int:
    """KV blocks with which no batch ever waits for memory. Finished requests that are computed on
    reach the longest output of their batch."""
    longest_output = max(one.output for one in lengths)
    most = sorted((min(model_len, one.prompt + longest_output) for one in lengths),
                  reverse=True)[:slots]
    return sum(-(-tokens // _BLOCK) + 2 for tokens in most)


class _Runner:
    """Runs loads on one engine an arm."""

    def __init__(self, engines: Sequence[Engine], sizes: Sizes, seed: int,
                 progress: Progress) -> None:
        self._engines = engines
        self._sizes = sizes
        self._seed = seed
        self._progress = progress
        self._done = 0.0  # share of the claim

    def warm_up(self) -> None:
        """Weights are read and buffers touched before anything is timed."""
        arrivals = [Arrival([1 + i] * 8, 8) for i in range(4)]
        for engine in self._engines:
            CoreDriver(engine.core, arrivals, name="warm", check=self._progress.check).run_for(
                math.inf)

    def run_all(self, decode: list[Arrival], full: list[Arrival]) -> list[LoadResult]:
        """Saturated, at each rate, and the full lengths."""
        sizes = self._sizes
        work = [len(decode), *(sizes.num_at_rate for _ in sizes.rates), 2 * len(full)]
        shares = iter(n / sum(work) for n in work)
        first = self._run(Load("decode-dominated, saturated", decode, sizes.slots), next(shares))
        mean_output = statistics.fmean(a.max_tokens for a in decode)
        capacity = first.arms[ITERATION].tokens_per_s / mean_output
        results = [first]
        some = decode[:sizes.num_at_rate]
        for part in sizes.rates:
            rate = part * capacity
            due = arrival_times(len(some), request_rate=rate, seed=self._seed)
            arrivals = [dataclasses.replace(a, due_s=t) for a, t in zip(some, due)]
            name = f"decode-dominated, {100 * part:.0f} % of saturation"
            results.append(self._run(Load(name, arrivals, sizes.slots, rate), next(shares)))
        results.append(self._run(Load("full lengths, saturated", full, sizes.full_slots),
                                 next(shares)))
        return results

    def _run(self, load: Load, share: float) -> LoadResult:
        self._progress.stage(load.name, self._done)
        slots = load.slots
        kinds = (None, StaticBatch(slots, computes_finished=False),
                 StaticBatch(slots, computes_finished=True))
        drivers = [CoreDriver(engine.core, load.arrivals, name=f"{load.name}-{arm}", static=static,
                              slots=slots, check=self._progress.check)
                   for engine, arm, static in zip(self._engines, ARMS, kinds)]

        def tell() -> None:
            done = statistics.fmean(driver.share_done for driver in drivers)
            self._progress.advance(self._done + share * done)

        keep_pace(drivers, after_turn=tell)
        self._done += share
        outputs = [driver.outputs for driver in drivers]
        return LoadResult(
            load, {arm: arm_result(arm, driver, slots) for arm, driver in zip(ARMS, drivers)},
            {arm: driver.steps for arm, driver in zip(ARMS, drivers)},
            all(one == outputs[0] for one in outputs))


def arrivals_of(requests: Sequence[BenchRequest]) -> list[Arrival]:
    """All at once."""
    return [Arrival(r.prompt_token_ids, r.max_tokens) for r in requests]


def arm_result(arm: str, driver: CoreDriver, slots: int) -> ArmResult:
    """The figures of a driver that is done."""
    steps = driver.steps
    latencies = [one.latency_s for one in driver.served]
    num_wanted = sum(step.num_wanted for step in steps)
    seconds = driver.clock_s
    busy = _saturated(driver)
    busy_s = sum(step.seconds for step in busy)
    wasted = sum(step.num_held - step.num_useful + min(slots - step.num_held, step.num_waiting)
                 for step in steps)
    useful = sum(step.num_useful for step in steps)
    return ArmResult(
        arm, num_wanted / seconds,
        sum(step.num_wanted for step in busy) / busy_s if busy else math.nan,
        statistics.fmean(latencies), percentile(latencies, 99), wasted / (useful + wasted),
        len(steps), sum(step.num_rows for step in steps), num_wanted, seconds)


def _saturated(driver: CoreDriver) -> list[StepRecord]:
    """The steps that show the steady state under more requests than places: until the last one is
    admitted. Static batches are whole; with iteration-level scheduling it begins when the first
    request has ended, since the places were filled in one burst, whose prompts would count without
    their outputs."""
    steps = driver.steps
    end = next((i for i, step in enumerate(steps) if not step.num_waiting), len(steps))
    first_end_s = 0.0 if driver.is_static else min(one.end_s for one in driver.served)
    return [step for step in steps[:end] if step.start_s >= first_end_s]


def step_costs(steps: Sequence[StepRecord]) -> list[tuple[int, float]]:
    """(rows, median seconds) of steps without prompt tokens, rows rounded to buckets."""
    by_rows: dict[int, list[float]] = {}
    for step in steps:
        if step.num_rows and not step.num_prompt_tokens:
            bucket = min(_BUCKETS, key=lambda b: abs(b - step.num_rows))
            by_rows.setdefault(bucket, []).append(step.seconds)
    return [(rows, statistics.median(found)) for rows, found in sorted(by_rows.items())]


def _rate(result: LoadResult, arm: str) -> float:
    """Output tokens a second: in the steady state, where the run is long enough to have one, else
    over the whole run, whose end no arm can fill."""
    saturated = [result.arms[name].saturated_rate for name in ARMS]
    is_long = len(result.load.arrivals) >= _MIN_BATCHES * result.load.slots
    if is_long and math.isinf(result.load.rate) and not any(map(math.isnan, saturated)):
        return result.arms[arm].saturated_rate
    return result.arms[arm].tokens_per_s


def _ratio(result: LoadResult, baseline: str) -> float:
    return _rate(result, ITERATION) / _rate(result, baseline)


def _finding(results: list[LoadResult], facts: dict[str, Cell], factor: float) -> Finding:
    first, full = results[0], results[-1]
    costs = step_costs([step for result in results[:-1] for steps in result.steps.values()
                        for step in steps])
    figures = [
        Figure("throughput, decode-dominated, against computed finished rows",
               _ratio(first, PADDED), "x", _TARGET),
        Figure("throughput, decode-dominated, against free finished rows",
               _ratio(first, FREE), "x"),
        Figure("throughput, full lengths, against computed finished rows",
               _ratio(full, PADDED), "x"),
        Figure("throughput, full lengths, against free finished rows", _ratio(full, FREE), "x"),
        *_latency_figures(results),
        Figure("wasted places, decode-dominated, static", 100 * first.arms[FREE].wasted, "%"),
        Figure("wasted places, decode-dominated, iteration-level",
               100 * first.arms[ITERATION].wasted, "%"),
    ]
    counters: dict[str, Cell] = {}
    for arm in ARMS:
        counters[f"rows computed, {arm}"] = first.arms[arm].num_rows
        counters[f"steps, {arm}"] = first.arms[arm].num_steps
    raw = [{"load": r.load.name, "rate": r.load.rate, "is_identical": r.is_identical,
            "arms": [dataclasses.asdict(arm) for arm in r.arms.values()]} for r in results]
    return Finding(
        "orca", CLAIM.title, CLAIMED, SOURCE, figures, [*map(_load_table, results),
                                                        _cost_table(costs)],
        _diagrams(results, costs), _explanation(first, full, costs, factor), facts | counters,
        all(r.is_identical for r in results), {"loads": raw, "step_costs": costs})


def _latency_figures(results: list[LoadResult]) -> list[Figure]:
    """Of the highest rate."""
    rated = [r for r in results if not math.isinf(r.load.rate)]
    if not rated:
        return []
    arms = rated[-1].arms
    padded, iteration = arms[PADDED], arms[ITERATION]
    name = f"latency at {rated[-1].load.rate:.3g} requests/s, computed against iteration-level"
    return [Figure(f"mean {name}", padded.mean_latency_s / iteration.mean_latency_s, "x"),
            Figure(f"p99 {name}", padded.p99_latency_s / iteration.p99_latency_s, "x")]


def _load_table(result: LoadResult) -> Table:
    rate = "" if math.isinf(result.load.rate) else f", {result.load.rate:.2f} requests/s"
    rows: list[list[Cell]] = [
        [arm.arm, arm.tokens_per_s,
         None if math.isnan(arm.saturated_rate) else arm.saturated_rate,
         arm.mean_latency_s, arm.p99_latency_s, 100 * arm.wasted, arm.num_rows, arm.num_steps]
        for arm in result.arms.values()]
    return Table(f"{result.load.name}{rate}, {len(result.load.arrivals)} requests",
                 ["arm", "tok/s", "steady tok/s", "mean, s", "p99, s", "wasted, %", "rows",
                  "steps"], rows)


def _cost_table(costs: list[tuple[int, float]]) -> Table:
    return Table("a decode step by the rows in it", ["rows", "ms a step", "ms a row"],
                 [[str(rows), 1000 * seconds, 1000 * seconds / rows] for rows, seconds in costs])


def _diagrams(results: list[LoadResult], costs: list[tuple[int, float]]) -> list[Diagram]:
    saturated = [r for r in results if math.isinf(r.load.rate)]
    rated = [r for r in results if not math.isinf(r.load.rate)]
    names = [r.load.name.partition(",")[0] for r in saturated]
    latencies = []
    for arm in ARMS:
        latencies.append(Curve(f"{arm}, p99", [(r.load.rate, r.arms[arm].p99_latency_s)
                                               for r in rated]))
        latencies.append(Curve(f"{arm}, mean", [(r.load.rate, r.arms[arm].mean_latency_s)
                                                for r in rated], is_dashed=True))
    return [
        Bars("throughput, saturated", "output tokens a second", names,
             [(arm, [_rate(r, arm) for r in saturated]) for arm in ARMS]),
        Bars("wasted places in the batch", "% of places held or waited for", names,
             [(arm, [100 * r.arms[arm].wasted for r in saturated]) for arm in ARMS]),
        Panel("latency, decode-dominated", "requests a second", latencies, "seconds",
              is_log_y=True),
        Panel("cost of a decode step", "rows", [
            Curve("measured", [(rows, 1000 * seconds) for rows, seconds in costs])],
            "milliseconds"),
    ]


def _explanation(first: LoadResult, full: LoadResult, costs: list[tuple[int, float]],
                 factor: float) -> str:
    padded, iteration = first.arms[PADDED], first.arms[ITERATION]
    computed = padded.num_rows / padded.num_wanted
    few, most = (costs[0], costs[-1]) if costs else ((1, math.nan), (1, math.nan))
    saved = math.nan
    if most[0] > few[0]:
        saved = 100 * (most[1] - few[1]) / (most[0] - few[0]) / (most[1] / most[0])
    return (
        f"A static batch computes {computed:.2f} rows for each token that somebody wants when "
        "finished rows stay in it (FasterTransformer, the paper's baseline, works like that); "
        f"iteration-level scheduling computes {iteration.num_rows / iteration.num_wanted:.2f}. "
        f"That bounds the gain; {_ratio(first, PADDED):.2f}x was measured, prompts included, "
        "which cost the same in all arms. Against a static batch whose finished rows cost nothing "
        f"the gain is {_ratio(first, FREE):.2f}x: on this machine a step of {few[0]} takes "
        f"{number(1000 * few[1])} ms and one of {most[0]} {number(1000 * most[1])} ms, so a place "
        f"left empty saves {saved:.0f} % of what a row costs on average. On a GPU, where a step of "
        "few rows takes about as long as one of many, it saves next to nothing. "
        f"With full prompts (lengths times {factor:.2f} to fit the context) prefill, the same in "
        f"all arms, takes most of the time: {_ratio(full, PADDED):.2f}x and "
        f"{_ratio(full, FREE):.2f}x. "
        "The paper's 36.9x is at equal latency, for a model of 175 billion parameters on several "
        "GPUs and against another engine with other kernels; here all arms run the same ones, "
        "saturated.")


CLAIM = Claim("orca", "iteration-level scheduling against static batches (Orca)", run,
              takes=("trace",), check_input=check_trace)
