"""Request: one generation (one sample) inside the engine core, with what the scheduler knows of it.

Integers, token ids and times only. Must never hold tensors, text or sockets.
"""

import dataclasses
import enum

from octavo.core.messages import EngineCoreRequest, FinishReason, TokenLogprobs
from octavo.core.sampling_params import SamplingParams


class RequestStatus(enum.IntEnum):
    """Where a request is. Every status from FINISHED_STOPPED on is final."""

    WAITING = 0  # never ran, or (n > 1) waits for sample 0 to compute the prompt
    RUNNING = 1
    PREEMPTED = 2  # waits again: its blocks were given to others, its tokens are kept
    FINISHED_STOPPED = 3
    FINISHED_LENGTH = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6

    @property
    def is_finished(self) -> bool:
        return self >= RequestStatus.FINISHED_STOPPED

    @classmethod
    def of_finish_reason(cls, reason: FinishReason) -> "RequestStatus":
        return _STATUS_OF_REASON[reason]


_STATUS_OF_REASON = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One generation. Compared by identity.

    Attributes:
        token_ids: prompt and output so far, one list; only ever appended to.
        fork_of: id of sample 0 of its group, for the others.
        arrival_index: order of arrival in this engine; never changes, so a preempted request keeps
            its place.
        num_computed_tokens: leading tokens whose KV is valid; falls (to 0) only on preemption.
        num_cached_tokens: prompt tokens that came from the prefix cache; -1 until first admitted.
        num_preemptions: how often it lost its blocks.
        block_hashes: chained hashes of its leading full blocks, as far as anyone asked.
        prompt_logprobs: entries collected since the prompt was (re)started.
        untold_token_ids: forced tokens the worker has not been told of.
        num_unscored_tokens: so many of its last tokens were forced and wait for their logprobs;
            they are news when they have them.
        pending_stop: (reason, stop_reason): no token comes behind the unscored ones.
        is_chunked: its prompt took more than one step.
        abort_requested: ends when the step in flight is over.
        first_scheduled_s: clock at first admission, None before.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    stop_token_ids: frozenset[int]
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    seed: int
    sample_index: int
    max_tokens: int
    fork_of: str | None
    priority: int
    arrival_time_s: float
    arrival_index: int
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = -1
    num_preemptions: int = 0
    block_hashes: list[bytes] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    untold_token_ids: list[int] = dataclasses.field(default_factory=list)
    num_unscored_tokens: int = 0
    pending_stop: tuple[FinishReason, int | None] | None = None
    is_chunked: bool = False
    abort_requested: bool = False
    first_scheduled_s: float | None = None

    @classmethod
    def from_message(
        cls, message: EngineCoreRequest, *, arrival_index: int, now_s: float
    ) -> "Request":
        """The request a wire message describes. now_s is its arrival where the sender gave none."""
        return cls(
            request_id=message.request_id,
            token_ids=list(message.prompt_token_ids),
            num_prompt_tokens=len(message.prompt_token_ids),
            params=message.params,
            eos_token_ids=tuple(message.eos_token_ids),
            stop_token_ids=frozenset(message.params.stop_token_ids or ()),
            bad_words_token_ids=tuple(tuple(w) for w in message.bad_words_token_ids or ()),
            seed=message.seed,
            sample_index=message.sample_index,
            max_tokens=message.max_tokens,
            fork_of=message.fork_of,
            priority=message.priority,
            arrival_time_s=message.arrival_time_s or now_s,
            arrival_index=arrival_index,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens_to_compute(self) -> int:
        """Leading tokens to compute with what is known: of a request that draws no more the last
        one is scored only."""
        return len(self.token_ids) - (self.pending_stop is not None)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached blocks may stand in for computing its tokens.

        Prompt logprobs need every prompt row; they are delivered with the first output token, so
        from then on a resumed request may read the cache again.
        """
        if self.params.skip_reading_prefix_cache:
            return False
        return self.params.prompt_logprobs is None or self.num_output_tokens > 0
