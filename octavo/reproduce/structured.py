"""Claim `structured`: what a grammar costs, and what jump-forward gives back (Zheng et al.).

Two measurements. Objects one after the other, with forced text taken at once and with a step for
each of its tokens: the same tokens, fewer steps. And many objects at a time, with masks and
without: what following a grammar costs the processor.
"""

import dataclasses
import statistics
import time
from typing import Any

from octavo.bench.plot import Bars
from octavo.core.messages import SchedulerStats
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputs
from octavo.engine.llm import LLM
from octavo.engine.outputs import RequestOutput
from octavo.reproduce.arms import alternate
from octavo.reproduce.claim import Claim, Options, Progress
from octavo.reproduce.finding import Cell, Figure, Finding, Table

_JUMP, _STEPS = "jump-forward", "a step each"
_MASKED, _FREE = "with the grammar", "without"
_STRING: dict[str, Any] = {"type": "string", "maxLength": 24}
# what programs ask for: names that are fixed, few values that are free
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {"type": "object", "additionalProperties": False,
               "required": ["first_name", "family_name", "year_of_birth", "is_member", "role"],
               "properties": {"first_name": _STRING, "family_name": _STRING,
                              "year_of_birth": {"type": "integer", "minimum": 1900,
                                                "maximum": 2020},
                              "is_member": {"type": "boolean"},
                              "role": {"enum": ["administrator", "contributor", "reader"]}}},
    "order": {"type": "object", "additionalProperties": False,
              "required": ["order_number", "customer", "delivery", "total_in_cents"],
              "properties": {
                  "order_number": {"type": "integer", "minimum": 1, "maximum": 99999},
                  "customer": {"type": "object", "additionalProperties": False,
                               "required": ["name", "country_code"],
                               "properties": {"name": _STRING, "country_code": {
                                   "type": "string", "pattern": "^[A-Z]{2}$"}}},
                  "delivery": {"enum": ["standard delivery", "express delivery", "pick-up"]},
                  "total_in_cents": {"type": "integer", "minimum": 0, "maximum": 999999}}},
    "verdict": {"type": "object", "additionalProperties": False,
                "required": ["is_answer_correct", "confidence", "short_reason"],
                "properties": {"is_answer_correct": {"type": "boolean"},
                               "confidence": {"enum": ["low", "medium", "high"]},
                               "short_reason": {"type": "string", "maxLength": 60}}},
}


@dataclasses.dataclass(slots=True, frozen=True)
class Sizes:
    """objects: of each schema, one at a time. batch: objects at a time where masks are priced.
    repetitions: of each arm."""

    objects: int
    batch: int
    repetitions: int


FULL, QUICK = Sizes(4, 32, 4), Sizes(1, 4, 1)


@dataclasses.dataclass(slots=True, frozen=True)
class Run:
    """One arm once. jumped: tokens that took no step of their own."""

    seconds: float
    cpu_s: float
    num_tokens: int
    num_steps: int
    jumped: int
    outputs: list[tuple[list[int], ...]]


def run(options: Options, progress: Progress) -> Finding:
    """Measures the claim. Raises OctavoError."""
    return measure(options, QUICK if options.quick else FULL, progress)


def measure(options: Options, sizes: Sizes, progress: Progress) -> Finding:
    """run() with sizes of the caller's."""
    progress.stage("loading", 0.0)
    arguments: dict[str, Any] = {
        "max_model_len": 512, "max_num_seqs": max(sizes.batch, 2), "seed": options.seed,
        "num_threads": options.num_threads, "enable_prefix_caching": False}
    with (LLM(options.model, jump_forward=True, **arguments) as jumping,
          LLM(options.model, jump_forward=False, **arguments) as stepping):
        for llm in (jumping, stepping):  # compiles the grammars
            _objects(llm, 1)
            progress.check()
        progress.stage("one object at a time", 0.1)
        single = alternate({
            _JUMP: lambda: _timed(jumping, lambda llm: _objects(llm, sizes.objects)),
            _STEPS: lambda: _timed(stepping, lambda llm: _objects(llm, sizes.objects)),
        }, sizes.repetitions, between=lambda name: progress.check())
        progress.stage(f"{sizes.batch} objects at a time", 0.5)
        lengths = [len(tokens) for output in _batch(stepping, sizes.batch, None)
                   for tokens in output]
        batched = alternate({
            _MASKED: lambda: _timed(stepping, lambda llm: _batch(llm, sizes.batch, None)),
            _FREE: lambda: _timed(stepping, lambda llm: _batch(llm, sizes.batch, lengths)),
        }, sizes.repetitions, between=lambda name: progress.check())
        described = jumping.describe()
        facts: dict[str, Cell] = {
            "model": jumping.config.model.path.rpartition("/")[2],
            "backend": f"{jumping.config.model.backend} {described.get('isa', '')}".strip(),
            "threads": jumping.config.model.num_threads, "KV": jumping.config.cache.dtype,
            "repetitions": sizes.repetitions}
    return _finding(single, batched, facts, sizes)


def _objects(llm: LLM, count: int) -> list[tuple[list[int], ...]]:
    """Objects of every schema, each a request alone."""
    found = []
    for name, schema in SCHEMAS.items():
        for index in range(count):
            params = SamplingParams(temperature=0.7, seed=100 + index, max_tokens=200,
                                    structured_outputs=StructuredOutputs(json=schema))
            found += _tokens(llm.chat(_question(name), params, use_tqdm=False))
    return found


def _batch(llm: LLM, count: int, lengths: list[int] | None) -> list[tuple[list[int], ...]]:
    """Objects of all schemas in turn, at once; with lengths: as many free tokens instead."""
    names = [list(SCHEMAS)[i % len(SCHEMAS)] for i in range(count)]
    params = [
        SamplingParams(temperature=0.7, seed=500 + i, max_tokens=200,
                       structured_outputs=StructuredOutputs(json=SCHEMAS[name]))
        if lengths is None else
        SamplingParams(temperature=0.7, seed=500 + i, max_tokens=lengths[i], ignore_eos=True)
        for i, name in enumerate(names)]
    return _tokens(llm.chat([_question(name) for name in names], params, use_tqdm=False))


def _question(name: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Write a JSON object that describes one {name}."}]


def _tokens(outputs: list[RequestOutput]) -> list[tuple[list[int], ...]]:
    return [tuple(list(sample.token_ids) for sample in output.outputs) for output in outputs]


def _timed(llm: LLM, call: Any) -> Run:
    before = llm.stats()
    num_steps, jumped = before.num_steps, before.num_jump_forward_tokens
    cpu, started = time.process_time(), time.perf_counter()
    outputs = call(llm)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    after: SchedulerStats = llm.stats()
    return Run(seconds, cpu, sum(len(t) for o in outputs for t in o), after.num_steps - num_steps,
               after.num_jump_forward_tokens - jumped, outputs)


def _finding(single: dict[str, list[Run]], batched: dict[str, list[Run]], facts: dict[str, Cell],
             sizes: Sizes) -> Finding:
    jump, steps = single[_JUMP], single[_STEPS]
    masked, free = batched[_MASKED], batched[_FREE]
    same = all(one.outputs == jump[0].outputs for one in (*jump, *steps))
    assert all(one.jumped for one in jump) and not any(one.jumped for one in (*steps, *masked))
    assert all(a.num_tokens == b.num_tokens for a in masked for b in free)
    speedup = _median([one.seconds for one in steps]) / _median([one.seconds for one in jump])
    cost = _median([m.cpu_s / f.cpu_s for m, f in zip(masked, free, strict=True)]) - 1
    share = jump[0].jumped / jump[0].num_tokens
    table = Table("one object at a time", ["arm", "tok/s", "steps", "tokens", "forced tokens"], [
        [name, one[0].num_tokens / _median([r.seconds for r in one]), one[0].num_steps,
         one[0].num_tokens, one[0].jumped] for name, one in ((_JUMP, jump), (_STEPS, steps))])
    prices = Table(f"{sizes.batch} objects at a time, no jump-forward",
                   ["arm", "CPU us a token", "tok/s", "tokens"], [
        [name, 1e6 * _median([r.cpu_s / r.num_tokens for r in one]),
         one[0].num_tokens / _median([r.seconds for r in one]), one[0].num_tokens]
        for name, one in ((_MASKED, masked), (_FREE, free))])
    words = (
        f"{share:.0%} of these tokens are forced by their schemas. With jump-forward they are "
        "computed behind a drawn token as one chunk: a decode step is bound by reading the weights "
        f"once, so a chunk of several tokens costs little more, and {jump[0].num_steps:,} steps do "
        f"what {steps[0].num_steps:,} did. How much it gives depends on that share alone; free "
        "text gains nothing. A mask (a bit for each id of the vocabulary) is mostly put together "
        "from cached slices; its price is set against a small model's step here and shrinks with "
        "a larger model.")
    return Finding(
        name="structured", title="forced text without a step for each token; the price of masks",
        claimed=("A compressed finite state machine decodes several tokens at once where the "
                 "grammar forces them: 1.6 times the throughput in JSON decoding. Masks of newer "
                 "grammar engines cost next to nothing."),
        source=("Zheng et al., SGLang, NeurIPS 2024, section 6; Dong et al., XGrammar, 2024"),
        figures=[Figure("speed with jump-forward, one object at a time", speedup, "x", 1.5),
                 Figure("CPU time of masks and of drawing under them", 100 * cost, "%", 5,
                        at_least=False)],
        tables=[table, prices],
        diagrams=[Bars("JSON objects, one at a time", "tok/s", [_JUMP, _STEPS],
                       [("tok/s", [float(str(row[1])) for row in table.rows])])],
        explanation=words, facts=facts, identical_outputs=same,
        raw={"single": {k: [_plain(r) for r in v] for k, v in single.items()},
             "batched": {k: [_plain(r) for r in v] for k, v in batched.items()}})


def _plain(one: Run) -> dict[str, Any]:
    return {"seconds": one.seconds, "cpu_s": one.cpu_s, "tokens": one.num_tokens,
            "steps": one.num_steps, "jumped": one.jumped}


def _median(values: list[float]) -> float:
    return float(statistics.median(values))


CLAIM = Claim("structured", "jump-forward over forced text, and what masks cost", run)
