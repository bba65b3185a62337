"""A request's tokens and logprobs depend on that request alone, bit for bit, on the real model.

One row a variation. Each is compared with the baseline (every request alone, no prefix cache, no
chunk boundary below 512 tokens, two threads), and each proves by counters that its feature ran.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.core.messages import SchedulerStats
from octavo.engine import factory
from octavo.engine.outputs import RequestOutput, TokenLogprobDict
from octavo.grammar.backend import GrammarBackend

VOCAB = 49152
SHARED_PREFIX = 96  # tokens: six whole blocks
MAX_TOKENS = 14
RECORD = {"type": "object", "additionalProperties": False, "required": ["kind", "word", "n"],
          "properties": {"kind": {"const": "record"}, "word": {"type": "string"},
                         "n": {"type": "integer"}}}
LISTED = {"logprobs": 0, "logprob_token_ids": [260, 34, 2, 49151, 281]}


@dataclasses.dataclass(frozen=True)
class Case:
    """One request of the mix."""

    token_ids: list[int]
    params: SamplingParams
    shares_prefix: bool = False


@dataclasses.dataclass
class Observed:
    """What a run showed, beside its outputs."""

    cases: list[Case]
    stats: SchedulerStats = dataclasses.field(default_factory=SchedulerStats)
    max_running: int = 0
    other_thread_ticks: int = 0  # of another Python thread, counted inside native calls only
    grammar_rows: int = 0  # rows drawn under a grammar's mask

    def prompts_longer_than(self, tokens: int) -> int:
        return sum(len(c.token_ids) > tokens for c in self.cases)

    @property
    def shared_tokens(self) -> int:
        sharers = sum(c.shares_prefix for c in self.cases)
        return (sharers - 1) * SHARED_PREFIX


def sampling_mix(index: int) -> SamplingParams:
    """Greedy, sampled, filtered, penalized, biased, banned, masked and structured requests in
    turn."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 40, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.3},
        {"temperature": 0.0, "frequency_penalty": 1.0, "logit_bias": {260: 3.0, 281: -100.0}},
        {"temperature": 1.2, "bad_words": ["the", "and a"], "min_tokens": 6, "ignore_eos": False},
        {"temperature": 1.0, "allowed_token_ids": list(range(500, 4000, 7))},
        {"temperature": 1.5, "top_k": 200, "top_p": 0.8, "min_p": 0.01, **LISTED},
        {"temperature": 1.0, "structured_outputs": {"json": RECORD}, **LISTED},
        {"temperature": 1.0, "repetition_penalty": 1.2, "logit_bias": {260: 3.0},
         "structured_outputs": {"regex": "[a-z ]{3,40}[.]( [0-9]+)*"}},
    ]
    options: dict[str, Any] = {"ignore_eos": True, "logprobs": 2} | kinds[index % len(kinds)]
    if index % 9 == 8:
        options["prompt_logprobs"] = 1
    n = 2 if index % 4 == 3 else 3 if index % 9 == 5 else 1
    return SamplingParams(n=n, seed=1000 + index, max_tokens=MAX_TOKENS, **options)


def make_cases(count: int) -> list[Case]:
    """The longest first, so that they still run when the short ones join."""
    rng = np.random.default_rng(17)
    num_long, num_shared = max(2, count // 24), count // 4
    prefix = rng.integers(300, VOCAB, SHARED_PREFIX).tolist()
    lengths = [1500, 700, *rng.integers(600, 1500, num_long - 2).tolist()]
    short = 2 ** rng.uniform(0, math.log2(130), count - num_long - num_shared)
    lengths += [1, *short.astype(int).tolist()[1:]]
    cases = [Case(rng.integers(300, VOCAB, n).tolist(), sampling_mix(i))
             for i, n in enumerate(lengths)]
    for _i in range(num_shared):
        tail = rng.integers(300, VOCAB, int(rng.integers(1, 30))).tolist()
        params = sampling_mix(len(cases))
        # prompt logprobs would not read the cache
        params.prompt_logprobs = None
        cases.append(Case(prefix + tail, params, shares_prefix=True))
    return cases


Snapshot = list[object]


def snapshot(output: RequestOutput) -> Snapshot:
    """Everything that must not change, floats as they are."""

    def plain(entry: TokenLogprobDict | None) -> object:
        return entry and [(t, v.logprob, v.rank) for t, v in entry.items()]

    samples: list[object] = [
        (s.index, s.token_ids, s.text, s.finish_reason, s.cumulative_logprob,
         [plain(e) for e in s.logprobs or []])
        for s in output.outputs
    ]
    return [*samples, [plain(e) for e in output.prompt_logprobs or []]]


class NativeWatch:
    """Stands before the loaded model: counts another thread's progress inside native calls."""

    def __init__(self, model: Any, observed: Observed) -> None:
        self._model = model
        self._observed = observed
        self._ticks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def _tick(self) -> None:
        while not self._stop.wait(0.0005):
            self._ticks += 1

    def __enter__(self) -> "NativeWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        before = self._ticks
        try:
            return self._model.step(*args, **kwargs)
        finally:
            self._observed.other_thread_ticks += self._ticks - before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


Hook = Callable[[Any, int], None]  # the scheduler, the step number: between two steps


def run(llm: LLM, cases: Sequence[Case], observed: Observed, *, hook: Hook | None = None
        ) -> list[Snapshot]:
    """All cases in one batch, watched."""
    client: Any = llm._client
    core = client._core
    runner = core._executor._worker._runner
    step, model = client.step, runner._model
    steps = 0

    def watched_step(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        if hook is not None:
            hook(core._scheduler, steps)
        outputs = step(*args)
        observed.max_running = max(observed.max_running, outputs.stats.num_running)
        observed.grammar_rows += len(runner._states.grammar_masks)
        return outputs

    with NativeWatch(model, observed) as watch:
        client.step, runner._model = watched_step, watch
        try:
            outputs = llm.generate([c.token_ids for c in cases], [c.params for c in cases],
                                   use_tqdm=False)
        finally:
            client.step, runner._model = step, model
    observed.stats = llm.stats()
    return [snapshot(o) for o in outputs]


def preempt_often(scheduler: Any, step: int) -> None:
    """After every step but the first few the youngest running request loses its blocks."""
    if step > 2 and scheduler.stats().num_preemptions < 30:
        scheduler.preempt_latest()


def preempt_sometimes(scheduler: Any, step: int) -> None:
    """Three steps of four, so that the fourth may be a prepared one."""
    if step % 4:
        preempt_often(scheduler, step)


@dataclasses.dataclass(frozen=True)
class Row:
    """A variation: engine options, the cases it runs, and the proof that it happened."""

    name: str
    proof: Callable[[Observed], bool]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    picks: Callable[[Case], bool] = lambda case: True
    isa: str | None = None
    hook: Hook | None = None
    repeat: int = 1  # runs on one engine; the last one counts for the proof


def _short(case: Case) -> bool:
    return len(case.token_ids) <= 150


def _ahead(case: Case) -> bool:
    return _short(case) and case.params.structured_outputs is None


def _chunk(size: int) -> Row:
    return Row(
        f"chunks-{size}",
        # where a step is full, the prompt that comes last is cut, too
        lambda o: o.stats.num_chunked_prefills >= o.prompts_longer_than(size) > 0,
        {"long_prefill_token_threshold": size, "enable_prefix_caching": False,
         "max_num_batched_tokens": 2048},
        # every length matters to small chunks; chunks of 512 need the long prompts
        picks=(lambda c: len(c.token_ids) <= 750) if size < 512 else lambda c: not _short(c),
    )


ROWS = [
    Row("batch-of-32", lambda o: o.max_running >= 32 and o.stats.num_copies_on_write > 0
        and o.other_thread_ticks >= o.stats.num_steps, {"enable_prefix_caching": False}),
    Row("prefix-cache", lambda o: o.stats.prefix_cache_hits > 0.3 * o.shared_tokens > 0,
        picks=lambda c: c.shares_prefix or len(c.token_ids) < 20),
    Row("prefix-cache-warm", lambda o: o.stats.prefix_cache_hits > 0.5
        * o.stats.prefix_cache_queries / 2 > 0, picks=lambda c: len(c.token_ids) <= 750, repeat=2),
    _chunk(16),
    _chunk(64),
    _chunk(512),
    Row("preemptions", lambda o: o.stats.num_preemptions >= 20,
        {"num_blocks": 48, "max_model_len": 512, "enable_prefix_caching": False},
        picks=_short, hook=preempt_often),
    Row("preemptions-cached", lambda o: o.stats.num_preemptions >= 20
        and o.stats.prefix_cache_hits > 0, {"num_blocks": 48, "max_model_len": 512},
        picks=_short, hook=preempt_often),
    Row("no-jump-forward", lambda o: o.stats.num_jump_forward_tokens == 0 < o.grammar_rows,
        {"jump_forward": False}, picks=lambda c: c.params.structured_outputs is not None),
    Row("jump-forward", lambda o: o.stats.num_jump_forward_tokens >= 10 <= o.stats.num_preemptions,
        {"num_blocks": 160, "max_num_batched_tokens": 24, "enable_prefix_caching": False},
        picks=lambda c: c.params.structured_outputs is not None or len(c.token_ids) < 20,
        hook=preempt_often),
    Row("scheduled-ahead", lambda o: o.max_running >= 16
        and o.stats.num_steps_scheduled_ahead >= 5,
        {"async_scheduling": True}, picks=_ahead),
    Row("scheduled-ahead-preemptions", lambda o: o.stats.num_preemptions >= 10
        and o.stats.num_steps_scheduled_ahead >= 3,
        {"async_scheduling": True, "num_blocks": 48, "max_model_len": 512}, picks=_ahead,
        hook=preempt_sometimes),
    Row("one-thread", lambda o: o.max_running >= 16, {"num_threads": 1}, picks=_short),
    # scalar code is slow: the shorter half of the mix
    Row("generic-isa", lambda o: o.max_running >= 12, isa="generic",
        picks=lambda c: len(c.token_ids) <= 11),
    Row("avx2-isa", lambda o: o.max_running >= 12, isa="avx2",
        picks=lambda c: len(c.token_ids) <= 11),
]


def make_llm(path: Path, options: dict[str, Any]) -> LLM:
    defaults: dict[str, Any] = {"max_model_len": 2048, "num_blocks": 1024, "num_threads": 2,
                                "max_num_seqs": 256, "max_num_batched_tokens": 512}
    return LLM(str(path), **(defaults | options))


@dataclasses.dataclass
class Baseline:
    cases: list[Case]
    alone: list[Snapshot]


def make_baseline(path: Path, count: int) -> Baseline:
    cases = make_cases(count)
    with make_llm(path, {"enable_prefix_caching": False}) as llm:
        alone = [snapshot(llm.generate([c.token_ids], c.params, use_tqdm=False)[0])
                 for c in cases]
        stats = llm.stats()
    assert stats.num_preemptions == stats.prefix_cache_hits == 0
    assert stats.num_native_calls == stats.num_steps
    assert stats.num_jump_forward_tokens >= 10
    assert stats.num_steps_scheduled_ahead == 0
    return Baseline(cases, alone)


@pytest.fixture(scope="module", autouse=True)
def one_grammar_backend() -> Iterator[None]:
    """Loaded once, not by each engine: it takes longer than the rows do."""
    load, loaded = factory._load_grammar_backend, []

    def load_once(config: EngineConfig) -> GrammarBackend:
        if not loaded:
            loaded.append(load(config))
        return loaded[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "_load_grammar_backend", load_once)
        yield


@pytest.fixture(scope="module")
def baseline(model_path: Path) -> Iterator[Baseline]:
    yield make_baseline(model_path, 24)


@pytest.fixture(scope="module")
def baseline_full(model_path: Path) -> Iterator[Baseline]:
    yield make_baseline(model_path, 100)


def check(row: Row, base: Baseline, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if row.isa is not None:
        isas = pytest.importorskip("octavo._native").kernel_isas()
        if row.isa not in isas:
            pytest.skip(f"this CPU runs {', '.join(isas)} only")
        monkeypatch.setenv("OCTAVO_CPU_ISA", row.isa)
    picked = [i for i, c in enumerate(base.cases) if row.picks(c)]
    cases = [base.cases[i] for i in picked]
    observed = Observed(cases)
    with make_llm(path, row.options) as llm:
        if row.isa is not None:
            assert row.isa in llm.describe()["isa"]
        for _ in range(row.repeat):
            got = run(llm, cases, observed, hook=row.hook)
            wrong = [i for i, snap in zip(picked, got) if snap != base.alone[i]]
            assert not wrong, (
                f"{row.name}: {len(wrong)} of {len(picked)} requests differ, first {wrong[0]}:\n"
                f"{got[picked.index(wrong[0])]}\nalone:\n{base.alone[wrong[0]]}"
            )
    stats = observed.stats
    assert stats.num_native_calls == stats.num_steps, "more than one native call a step"
    assert stats.num_free_blocks == stats.num_blocks
    assert row.proof(observed), f"{row.name} proves nothing: {observed.max_running=} {stats}"
    if any(c.params.structured_outputs is not None for c in cases):
        assert observed.grammar_rows > 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_invariance(row: Row, baseline: Baseline, model_path: Path,
                    monkeypatch: pytest.MonkeyPatch) -> None:
    check(row, baseline, model_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_invariance_of_a_hundred(row: Row, baseline_full: Baseline, model_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    check(dataclasses.replace(row, picks=lambda case: True) if row.name == "batch-of-32" else row,
          baseline_full, model_path, monkeypatch)


def test_the_mix_is_mixed() -> None:
    cases = make_cases(24)
    lengths = [len(c.token_ids) for c in cases]
    assert len(cases) == 24 and min(lengths) == 1 and max(lengths) == 1500
    assert sum(c.params.n for c in cases) >= 32
    assert any(c.params.greedy for c in cases) and any(c.params.n > 1 for c in cases)
    assert sum(c.shares_prefix for c in cases) == 6
    assert any(c.params.prompt_logprobs is not None for c in cases)
    structured = [c.params for c in cases if c.params.structured_outputs is not None]
    assert len(structured) >= 4 and any(p.n > 1 for p in structured)
