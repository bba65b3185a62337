"""Latency of one batch and throughput of many requests, in this process, without HTTP.

The whole offline path is timed: request checks, engine, detokenizer. Reports have vLLM's fields.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from octavo.bench.datasets import BenchRequest, Vocabulary
from octavo.bench.load import LoadResult, RequestRecord
from octavo.bench.serving_report import ServingReport, report_json, serving_report
from octavo.bench.stats import percentile, summarize
from octavo.core.sampling_params import SamplingParams
from octavo.engine.llm import LLM
from octavo.engine.outputs import RequestOutput
from octavo.tokenizer.tokenizer import Tokenizer

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclasses.dataclass(slots=True, frozen=True)
class LatencyReport:
    """Seconds of each iteration, and of the tokens in them: of each request the time to its first
    token and of an output token behind it."""

    latencies: list[float]
    ttft_s: list[float]
    tpot_s: list[float]

    def to_json(self) -> dict[str, Any]:
        """vLLM's fields, and the mean times of tokens."""
        return {
            "avg_latency": summarize(self.latencies).mean, "latencies": self.latencies,
            "percentiles": {str(p): percentile(self.latencies, p) for p in LATENCY_PERCENTILES},
            "mean_ttft_ms": 1000 * summarize(self.ttft_s).mean,
            "mean_tpot_ms": 1000 * summarize(self.tpot_s).mean if self.tpot_s else None,
        }

    def text(self) -> str:
        """For people."""
        lines = [f"Avg latency: {summarize(self.latencies).mean:.4f} seconds"]
        lines += [f"{p}% percentile latency: {percentile(self.latencies, p):.4f} seconds"
                  for p in LATENCY_PERCENTILES]
        lines.append(f"Mean time to first token: {1000 * summarize(self.ttft_s).mean:.2f} ms")
        if self.tpot_s:
            lines.append(f"Mean time per output token: {1000 * summarize(self.tpot_s).mean:.2f} ms")
        return "\n".join(lines)


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Every id but the control tokens that many vocabularies begin with."""
    first = 0
    while first in tokenizer.special_ids:
        first += 1
    return Vocabulary(tokenizer.vocab_size, first)


def run_latency(llm: LLM, *, vocabulary: Vocabulary, input_len: int, output_len: int,
                batch_size: int, num_samples: int = 1, num_iters: int = 30,
                num_iters_warmup: int = 10, seed: int = 0,
                progress: Callable[[str], None] = lambda what: None) -> LatencyReport:
    """Times `num_iters` batches of fresh random prompts, all sent at once."""
    import numpy as np

    rng = np.random.default_rng(seed)
    params = SamplingParams(n=num_samples, temperature=1.0 if num_samples > 1 else 0.0,
                            max_tokens=output_len, ignore_eos=True)
    latencies: list[float] = []
    records: list[RequestRecord] = []
    for i in range(num_iters_warmup + num_iters):
        is_warmup = i < num_iters_warmup
        progress(f"warm-up {i + 1}" if is_warmup else f"iteration {i + 1 - num_iters_warmup}")
        prompts = [{"prompt_token_ids": vocabulary.draw(rng, input_len)} for _ in range(batch_size)]
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        if not is_warmup:
            latencies.append(time.perf_counter() - started)
            records += [record_of(output) for output in outputs]
    return LatencyReport(latencies, [r.ttft_s for r in records],
                         [t for r in records if (t := r.tpot_s) is not None])


@dataclasses.dataclass(slots=True, frozen=True)
class ThroughputReport:
    """All requests handed over at once. serving: the same run as a serving report; its ITL is
    empty, because only first and last token of a request are timed."""

    elapsed_s: float
    num_requests: int
    serving: ServingReport

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens."""
        return self.serving.total_input_tokens + self.serving.total_output_tokens

    def to_json(self) -> dict[str, Any]:
        """vLLM's fields first, then the serving report's."""
        return {
            "elapsed_time": self.elapsed_s, "num_requests": self.num_requests,
            "total_num_tokens": self.total_tokens,
            "requests_per_second": self.num_requests / self.elapsed_s,
            "tokens_per_second": self.total_tokens / self.elapsed_s,
            "output_tokens_per_cpu_s":
                self.serving.total_output_tokens / max(self.serving.client_cpu_s, 1e-9),
            **report_json(self.serving),
        }

    def text(self) -> str:
        """For people."""
        output = self.serving.total_output_tokens
        return (
            f"Throughput: {self.num_requests / self.elapsed_s:.2f} requests/s, "
            f"{self.total_tokens / self.elapsed_s:.2f} total tokens/s, "
            f"{output / self.elapsed_s:.2f} output tokens/s\n"
            f"Total num prompt tokens:  {self.serving.total_input_tokens} "
            f"({self.serving.total_cached_tokens} from the prefix cache)\n"
            f"Total num output tokens:  {output}\n"
            f"CPU time: {self.serving.client_cpu_s:.2f} s, "
            f"{output / max(self.serving.client_cpu_s, 1e-9):.2f} output tokens per CPU-second"
        )


def run_throughput(llm: LLM, requests: Sequence[BenchRequest]) -> ThroughputReport:
    """Times all requests at once; outputs go to their full length."""
    params = [SamplingParams(temperature=0.0, max_tokens=r.max_tokens, ignore_eos=True)
              for r in requests]
    cpu, started = time.process_time(), time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": r.prompt_token_ids} for r in requests], params,
                           use_tqdm=False)
    elapsed = time.perf_counter() - started
    result = LoadResult([record_of(output) for output in outputs], elapsed,
                        time.process_time() - cpu, len(requests))
    return ThroughputReport(elapsed, len(requests), serving_report(result))


def record_of(output: RequestOutput) -> RequestRecord:
    """A finished offline output as a record: first and last token are timed, not those between."""
    times = output.metrics
    assert times is not None and times.first_token_time is not None
    last = times.last_token_time or times.first_token_time
    return RequestRecord(
        start_s=times.arrival_time, ttft_s=times.first_token_time - times.arrival_time,
        latency_s=last - times.arrival_time, num_prompt_tokens=len(output.prompt_token_ids),
        num_output_tokens=sum(len(part.token_ids) for part in output.outputs),
        num_cached_tokens=output.num_cached_tokens,
    )
