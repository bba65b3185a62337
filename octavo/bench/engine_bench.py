"""Tokens a second of one engine core: prefill, decode of one sequence, decode of many.

Prompts are random ids, sampling is greedy, the prefix cache is off. Scheduler, sampler and all
are in the figures; tokenizer and text are not. Knows no HTTP and prints nothing.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from octavo.bench.machine_probe import MachineProbe
from octavo.bench.roofline import ModelCost, decode_bound, model_cost, prefill_bound
from octavo.bench.stats import Summary, summarize
from octavo.config import EngineConfig
from octavo.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.engine.factory import build_core
from octavo.errors import ConfigError, OctavoError

# ids below this are control tokens in many vocabularies
_FIRST_ID = 300


@dataclasses.dataclass(slots=True, frozen=True)
class Case:
    """One row of the table.

    kind "pp": a prompt of `tokens` tokens, until its first output token. kind "tg": `sequences`
    sequences of `context` tokens each generate `tokens` tokens, from when all have one.
    """

    kind: Literal["pp", "tg"]
    tokens: int
    sequences: int = 1
    context: int = 1

    @property
    def name(self) -> str:
        """pp512, tg128, tg128@d512, tg128xb32@d64."""
        many = f"xb{self.sequences}" if self.sequences > 1 else ""
        deep = f"@d{self.context}" if self.kind == "tg" and self.context > 1 else ""
        return f"{self.kind}{self.tokens}{many}{deep}"

    @property
    def kv_tokens(self) -> int:
        """KV slots the case needs at most."""
        if self.kind == "pp":
            return self.tokens + 1
        return self.sequences * (self.context + self.tokens)


@dataclasses.dataclass(slots=True, frozen=True)
class Run:
    """One repetition. mean_context: over the window. cpu_s: this process, all threads."""

    tokens: int
    seconds: float
    cpu_s: float
    mean_context: float = 0.0


@dataclasses.dataclass(slots=True, frozen=True)
class CaseResult:
    """A case and its repetitions. roofline: tokens/s the machine's measured limits allow; None
    without a probe. limit: what binds there, "memory" or "compute"."""

    case: Case
    runs: tuple[Run, ...]
    roofline: float | None = None
    limit: str | None = None

    @property
    def rate(self) -> Summary:
        """Tokens a second."""
        return summarize([run.tokens / run.seconds for run in self.runs])

    @property
    def tokens_per_cpu_s(self) -> Summary:
        """Tokens a second of CPU time."""
        return summarize([run.tokens / max(run.cpu_s, 1e-9) for run in self.runs])

    @property
    def percent(self) -> float | None:
        """Median rate in % of the roofline."""
        return None if self.roofline is None else 100 * self.rate.median / self.roofline


class EngineBench:
    """A loaded engine core to measure. A context manager."""

    def __init__(self, config: EngineConfig, *, seed: int = 0,
                 enable_prefix_caching: bool = False) -> None:
        config = dataclasses.replace(config, cache=dataclasses.replace(
            config.cache, enable_prefix_caching=enable_prefix_caching))
        self.config = config
        started = time.perf_counter()
        self.core, self._ready = build_core(config)
        self.load_s = time.perf_counter() - started
        self._rng = np.random.default_rng(seed)
        self._ids = itertools.count()

    def __enter__(self) -> "EngineBench":
        return self

    def __exit__(self, *error: object) -> None:
        self.core.shutdown()

    def check(self, cases: Sequence[Case]) -> None:
        """Raises ConfigError for a case that cannot run in this engine."""
        for case in cases:
            longest = case.context + case.tokens if case.kind == "tg" else case.tokens + 1
            if longest > self._ready.max_model_len:
                raise ConfigError(f"{case.name} needs {longest} tokens a sequence: raise "
                                  f"max_model_len ({self._ready.max_model_len})",
                                  param="max_model_len")
            if case.kv_tokens > self._ready.max_kv_tokens:
                raise ConfigError(f"{case.name} needs {case.kv_tokens} KV tokens, the cache holds "
                                  f"{self._ready.max_kv_tokens}: raise kv_cache_memory_bytes",
                                  param="kv_cache_memory_bytes")
            if case.sequences > self._ready.max_num_seqs:
                raise ConfigError(f"{case.name} needs {case.sequences} sequences: raise "
                                  f"max_num_seqs ({self._ready.max_num_seqs})",
                                  param="max_num_seqs")

    @property
    def vocab_size(self) -> int:
        """Of the model."""
        return self._ready.vocab_size

    def run(self, case: Case, prompts: Sequence[list[int]] | None = None) -> Run:
        """One repetition, with the given prompts or new random ones of the case's lengths."""
        if prompts is None:
            length = case.tokens if case.kind == "pp" else case.context
            prompts = [self.prompt(length) for _ in range(case.sequences)]
        if case.kind == "pp":
            return self._prefill(prompts[0])
        return self._decode(case, prompts)

    def describe(self) -> dict[str, str]:
        """Facts of the executor."""
        return dict(self.core.describe())

    def prompt(self, length: int) -> list[int]:
        """Random ids."""
        first = _FIRST_ID if self._ready.vocab_size > 2 * _FIRST_ID else 0
        return [int(i) for i in self._rng.integers(first, self._ready.vocab_size, length)]

    def _prefill(self, prompt: list[int]) -> Run:
        request = self._request(prompt, 1)
        clock = _Clock()
        self.core.add([request])
        self._steps(lambda: not self.core.has_requests)
        seconds, cpu_s = clock.read()
        return Run(len(prompt), seconds, cpu_s)

    def _decode(self, case: Case, prompts: Sequence[list[int]]) -> Run:
        generation = self.generate(prompts, case.tokens - 1)
        run = generation.window(case.tokens - 1)
        generation.end()
        return run

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> "Generation":
        """Sequences of these prompts of one length, each with its first token; `tokens` more of
        each may follow. Those whose prompt is done early generate until the last one is ready, so
        each is allowed some more."""
        context, count = len(prompts[0]), len(prompts)
        budget = self.config.scheduler.max_num_batched_tokens
        slack = -(-count * context // max(1, budget - count)) + 4
        room = self._ready.max_model_len - context
        allowed = min(room, tokens + slack + 2 if count > 1 else tokens + 1)
        requests = [self._request(prompt, allowed) for prompt in prompts]
        self.core.add(requests)
        return Generation(self, [r.request_id for r in requests], context)

    def _request(self, prompt: list[int], max_tokens: int) -> EngineCoreRequest:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return EngineCoreRequest(request_id=f"bench-{next(self._ids)}", prompt_token_ids=prompt,
                                 params=params, eos_token_ids=[], seed=0, max_tokens=max_tokens)

    def _steps(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.step()

    def step(self) -> list[EngineCoreOutput]:
        """One step's news. Raises OctavoError when a request failed."""
        outputs = self.core.step().outputs
        for output in outputs:
            if output.finish_reason is FinishReason.ERROR:
                raise OctavoError(f"a bench request failed: {output.error}")
        return outputs


class Generation:
    """Running sequences of one bench, each with a first token. Ended by end().

    token_ids: what each sequence has generated, by request id.
    """

    def __init__(self, bench: EngineBench, request_ids: list[str], context: int) -> None:
        self._bench, self._context = bench, context
        self.token_ids: dict[str, list[int]] = {name: [] for name in request_ids}
        self._steps(lambda: all(self.token_ids.values()))

    @property
    def _produced(self) -> int:
        return sum(len(ids) for ids in self.token_ids.values())

    def window(self, tokens: int) -> Run:
        """Times `tokens` more of each sequence."""
        before, count = self._produced, len(self.token_ids)
        clock = _Clock()
        self._steps(lambda: self._produced - before >= tokens * count
                    or not self._bench.core.has_requests)
        seconds, cpu_s = clock.read()
        made = self._produced - before
        return Run(made, seconds, cpu_s, self._context + (before + made / 2) / count)

    def end(self) -> None:
        """Drops the sequences."""
        core = self._bench.core
        core.abort(list(self.token_ids))
        while core.has_requests:
            core.step()

    def _steps(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            for output in self._bench.step():
                self.token_ids[output.request_id] += output.new_token_ids


class _Clock:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def read(self) -> tuple[float, float]:
        wall = time.perf_counter() - self._wall
        return wall, time.process_time() - self._cpu


def run_cases(bench: EngineBench, cases: Sequence[Case], *, repetitions: int,
              progress: Callable[[str], None] = lambda what: None) -> list[CaseResult]:
    """Every case `repetitions` times, in rounds (so that a slow minute of the machine hits all of
    them), after one round of small ones that is not counted."""
    bench.check(cases)
    for case in cases:
        bench.run(dataclasses.replace(case, tokens=min(case.tokens, 8),
                                      context=min(case.context, 16)))
    runs: dict[Case, list[Run]] = {case: [] for case in cases}
    for repetition in range(repetitions):
        for case in cases:
            progress(f"{case.name}, {repetition + 1} of {repetitions}")
            runs[case].append(bench.run(case))
    return [CaseResult(case, tuple(found)) for case, found in runs.items()]


def against_roofline(results: Sequence[CaseResult], config: EngineConfig,
                     probe: MachineProbe) -> list[CaseResult]:
    """The results with the rates the machine's limits allow."""
    cost = model_cost(config)
    return [_against(result, cost, probe, config) for result in results]


def _against(result: CaseResult, cost: ModelCost, probe: MachineProbe,
             config: EngineConfig) -> CaseResult:
    case, threads = result.case, config.model.num_threads
    if case.kind == "pp":
        bound = prefill_bound(cost, probe, threads=threads, tokens=case.tokens,
                              step_tokens=config.scheduler.max_num_batched_tokens)
        tokens = case.tokens
    else:
        context = summarize([run.mean_context for run in result.runs]).mean
        bound = decode_bound(cost, probe, threads=threads, sequences=case.sequences,
                             context=context)
        tokens = case.sequences
    limit = "memory" if bound.memory_s >= bound.compute_s else "compute"
    return dataclasses.replace(result, roofline=tokens / bound.seconds, limit=limit)

