"""What a caller gets back: RequestOutput and its parts, in vLLM's shape.

Plain data. Knows nothing about the engine, the wire or HTTP.
"""

import dataclasses
from typing import Literal, NamedTuple

OutputKind = Literal["delta", "cumulative", "final"]
LengthLimit = Literal["max_tokens", "context", "kv_cache"]


class Logprob(NamedTuple):
    """One token's raw-model log probability. rank: 1 = most likely; None where its id was
    listed."""

    logprob: float
    rank: int | None
    decoded_token: str


TokenLogprobDict = dict[int, Logprob]


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One sample of a request. In a delta: only what is new since the last one.

    Attributes:
        index: 0 .. n-1.
        text: decoded output, without EOS, and without the stop (unless it was asked for).
        token_ids: drawn ids, including the stop token or EOS that ended the sample. With a stop
            string, the last id is the one that completed it.
        logprobs: one dict an id: the drawn token first, then the alternatives, most likely first.
        cumulative_logprob: sum over all drawn tokens so far; None unless logprobs were asked for.
        finish_reason: "stop", "length", "abort" or "error"; None while running.
        stop_reason: the stop string or stop id that matched; None for EOS.
        seed: the seed the noise was keyed with, given or drawn.
        length_limit: with finish_reason "length", what was reached: "max_tokens" (the request's
            own bound), "context" (max_model_len) or "kv_cache" (all of it, by this sample alone).
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobDict] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    seed: int | None = None
    length_limit: LengthLimit | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass(slots=True)
class RequestMetrics:
    """Times and counts of one request; monotonic seconds, durations in seconds. One object for the
    life of the request: it goes on changing until finished_time is set.

    Attributes:
        num_cached_tokens: prompt tokens whose KV came from the prefix cache, known with the first
            token.
        num_generation_tokens: of all samples.
        finish_reasons: one a sample, when it is over.
    """

    arrival_time: float
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    queued_s: float | None = None
    prefill_s: float | None = None
    finish_reasons: list[str] = dataclasses.field(default_factory=list)

    @property
    def decode_s(self) -> float | None:
        """From the first token to the last one; None before the first."""
        if self.first_token_time is None or self.last_token_time is None:
            return None
        return self.last_token_time - self.first_token_time


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """News of one request, or all of it.

    Attributes:
        prompt: the text, where a text was given (a rendered chat included).
        prompt_logprobs: [None, dict, dict, ...], one entry a prompt token, when asked for; set
            in the first output that has them (in every one, for "cumulative").
        outputs: cumulative and final outputs hold all n samples; a delta those with news.
        finished: every sample has finished.
        num_cached_tokens: prompt tokens whose KV came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobDict | None] | None = None
    metrics: RequestMetrics | None = None
    kind: OutputKind = "final"

    def merge_delta(self, newer: "RequestOutput") -> None:
        """Folds a later delta of the same request into this one."""
        by_index = {o.index: o for o in self.outputs}
        for new in newer.outputs:
            old = by_index.get(new.index)
            if old is None:
                self.outputs.append(new)
                continue
            old.text += new.text
            old.token_ids.extend(new.token_ids)
            if new.logprobs:
                old.logprobs = (old.logprobs or []) + new.logprobs
            old.cumulative_logprob = new.cumulative_logprob
            old.finish_reason = new.finish_reason
            old.stop_reason = new.stop_reason
            old.length_limit = new.length_limit
        self.finished = newer.finished
        self.num_cached_tokens = newer.num_cached_tokens
        if newer.prompt_logprobs is not None:
            self.prompt_logprobs = newer.prompt_logprobs
