"""The wire: what the engine core receives and what it sends back. msgpack-encodable structs only.

One `EngineCoreOutputs` frame a step carries every request's news.
"""

import enum

import msgspec

from octavo.core.live import LiveState, LiveSteps
from octavo.core.sampling_params import SamplingParams


class FinishReason(enum.IntEnum):
    """Why a request ended. `str()` gives the OpenAI word."""

    STOP = 0  # EOS, a stop id or a stop string
    LENGTH = 1  # max_tokens or max_model_len
    ABORT = 2  # the client left, or asked
    ERROR = 3  # the engine failed it; `EngineCoreOutput.error` says why

    def __str__(self) -> str:
        return self.name.lower()


class EngineCoreRequest(msgspec.Struct, array_like=True, kw_only=True):
    """One sample of one user request, tokenized. `n` samples are `n` of these in one group.

    Attributes:
        request_id: unique in the engine.
        prompt_token_ids: at least one id, each below the vocabulary size.
        params: validated; `params.n` is ignored here (the group is already fanned out).
        eos_token_ids: end-of-sequence ids that stop this request (empty with ignore_eos).
        seed: the resolved seed (never None). sample_index: 0 .. n-1 within the group.
        max_tokens: resolved bound on output tokens.
        bad_words_token_ids: each a sequence that must not be completed.
        fork_of: request id of sample 0 of the group whose prompt KV this one shares; None for it.
        priority: lower runs earlier (policy "priority"). arrival_time_s: monotonic clock.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int]
    seed: int
    max_tokens: int
    sample_index: int = 0
    bad_words_token_ids: list[list[int]] | None = None
    fork_of: str | None = None
    priority: int = 0
    arrival_time_s: float = 0.0


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Raw-model logprobs of one position.

    token_id, logprob, rank (1 = most likely): the drawn (or given) token.
    top_ids, top_logprobs: the k most likely, descending; ties by lower id. Those that the request
        lists, in its order, if it does.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class EngineCoreOutput(msgspec.Struct, array_like=True, kw_only=True):
    """News of one request from one step.

    Attributes:
        new_token_ids: tokens drawn in this step (may be empty for a prefill chunk with news).
        logprobs: one entry for each new token, when asked for.
        prompt_logprobs: entries for prompt positions 1.. in order, delivered whole with the first
            token, when asked for.
        finish_reason, stop_reason: set once, in the last message. stop_reason is the stop id
            (not EOS) that matched, or None.
        num_cached_tokens: prompt tokens found in the prefix cache, set with the first message.
        error: one line for the user, with finish_reason ERROR. error_type: its class name in
            errors.py, when the request was refused rather than failed.
        queued_s, prefill_s: durations of this request's phases, set with the first token.
    """

    request_id: str
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int | None = None
    error: str | None = None
    error_type: str | None = None
    queued_s: float | None = None
    prefill_s: float | None = None


class SchedulerStats(msgspec.Struct, array_like=True, kw_only=True):
    """Counters (since start) and gauges (now) of the engine core."""

    num_waiting: int = 0
    num_running: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # free or evictable: what an empty engine has
    num_cached_blocks: int = 0
    live_tokens: int = 0  # KV tokens of running requests, shared blocks counted once
    allocated_slots: int = 0  # slots of the blocks those requests hold, shared ones once
    num_steps: int = 0
    num_native_calls: int = 0
    num_merged_rows: int = 0  # token rows whose attention read shared blocks with other sequences
    num_preemptions: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # of those, found
    num_copies_on_write: int = 0
    num_jump_forward_tokens: int = 0  # output tokens forced by a grammar, not drawn
    num_steps_scheduled_ahead: int = 0  # prepared while the step before ran
    num_chunked_prefills: int = 0  # requests whose prompt took more than one step
    num_prompt_tokens: int = 0  # computed in prefill, cached ones excluded
    num_generation_tokens: int = 0
    last_step_tokens: int = 0
    step_time_s: float = 0.0  # duration of the last step


class EngineCoreOutputs(msgspec.Struct, array_like=True, kw_only=True):
    """All news of one step."""

    outputs: list[EngineCoreOutput]
    stats: SchedulerStats | None = None


class AddRequests(msgspec.Struct, array_like=True, tag="add"):
    """Client to core: new requests, one group or several."""

    requests: list[EngineCoreRequest]


class AbortRequests(msgspec.Struct, array_like=True, tag="abort"):
    """Client to core: forget these. Unknown ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, array_like=True, tag="reset_prefix_cache"):
    """Client to core: drop every cached block that no request holds."""


class Watch(msgspec.Struct, array_like=True, tag="watch"):
    """Client to core: send CoreEvents, one each interval in which something happened; 0: no more.
    The first one comes at once."""

    interval_s: float


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown"):
    """Client to core: stop. With drain, finish what runs first."""

    drain: bool = False


class EngineReady(msgspec.Struct, array_like=True, tag="ready"):
    """Core to client, once: loaded. The limits the front end validates against."""

    max_model_len: int
    max_kv_tokens: int  # KV capacity in tokens: a request longer than this is refused
    vocab_size: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    backend: str
    load_seconds: float


class EngineFailed(msgspec.Struct, array_like=True, tag="failed"):
    """Core to client: loading failed, or the engine died. error_type: a class name of errors.py."""

    error_type: str
    message: str


class CoreOutputs(msgspec.Struct, array_like=True, tag="outputs"):
    """Core to client: the frame of one step."""

    outputs: EngineCoreOutputs


class CoreEvents(msgspec.Struct, array_like=True, tag="events"):
    """Core to client, while it is watched: the steps since the last one, and a snapshot now and
    then."""

    steps: LiveSteps
    state: LiveState | None = None


ToCore = AddRequests | AbortRequests | ResetPrefixCache | Watch | Shutdown
FromCore = EngineReady | EngineFailed | CoreOutputs | CoreEvents
