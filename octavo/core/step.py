"""One step as a value: what the scheduler decided, what the worker computed, what KV must move.

Integers and token ids only; no arrays, no model knowledge.
"""

import dataclasses
from collections.abc import Sequence

from octavo.core.messages import TokenLogprobs
from octavo.core.sampling_params import SamplingParams


@dataclasses.dataclass(slots=True, frozen=True)
class BlockCopy:
    """Copy KV slots of one block to another before the step's first KV write."""

    src_block_id: int
    dst_block_id: int
    num_slots: int  # leading slots of the block that hold tokens


@dataclasses.dataclass(slots=True, frozen=True)
class TransferPlan:
    """KV movement of one step, executed before the forward pass, in order."""

    copies: tuple[BlockCopy, ...] = ()


EMPTY_TRANSFER_PLAN = TransferPlan()


@dataclasses.dataclass(slots=True, frozen=True)
class NewRequestData:
    """A request that enters the worker in this step (first time, or again after preemption).

    token_ids holds prompt and output so far; positions below num_computed_tokens have their KV
    in block_ids already. num_unscored_tokens: see CachedRequestData.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    params: SamplingParams
    seed: int
    sample_index: int
    eos_token_ids: tuple[int, ...]
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    num_unscored_tokens: int = 0


@dataclasses.dataclass(slots=True, frozen=True)
class CachedRequestData:
    """A request the worker already knows: only what changed.

    new_token_ids: known output tokens that the worker did not draw (a grammar forced them).
    num_unscored_tokens: so many of the last known tokens wait for their logprobs: the rows before
    them score them.
    """

    request_id: str
    num_computed_tokens: int
    new_block_ids: list[int]  # appended to its block table
    # copy on write: (index in the block table, new block id)
    replaced_blocks: tuple[tuple[int, int], ...] = ()
    new_token_ids: Sequence[int] = ()
    num_unscored_tokens: int = 0


@dataclasses.dataclass(slots=True, frozen=True)
class SchedulerOutput:
    """What runs in this step.

    The order of `num_scheduled_tokens` is the row order of the step. A request samples in this
    step iff num_computed_tokens + num_scheduled_tokens reaches its known tokens (prompt + output).
    finished_request_ids leave the worker (ended, aborted or preempted) before anything else.
    masks: for requests with a grammar, what their next token may be: little-endian uint32 words,
    bit i % 32 of word i // 32 for token id i. Used where the request samples in this step. The
    engine core adds them; the scheduler leaves them out.
    """

    step_id: int
    num_scheduled_tokens: dict[str, int]
    new_requests: tuple[NewRequestData, ...] = ()
    cached_requests: tuple[CachedRequestData, ...] = ()
    finished_request_ids: tuple[str, ...] = ()
    transfer_plan: TransferPlan = EMPTY_TRANSFER_PLAN
    masks: dict[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclasses.dataclass(slots=True, frozen=True)
class ModelRunnerOutput:
    """What the worker computed.

    sampled_token_ids: request id to the tokens drawn (absent: it did not sample in this step).
    logprobs: for requests that asked, one entry for each unscored token that a row of this step
    scored, in order, then one for each token drawn.
    prompt_logprobs: for each request that asked, the entries of the prompt positions computed in
    this step (the token at position p + 1, scored by the row of position p).
    failed: request id to one line for the user: nothing could be drawn for it. Such a request is
    absent from sampled_token_ids, or these are ignored, and ends with FinishReason.ERROR.
    broken: those of `failed` where the model's scores are to blame, not what the request bans.
    forced_token_ids: request id to the tokens that must follow those drawn, whatever the model
    says. The engine core adds them; the worker hears of them in the next step.
    completed: requests whose grammar allows nothing behind these tokens, drawn and forced: they
    end with FinishReason.STOP. The engine core adds them; the worker leaves them out.
    """

    step_id: int
    sampled_token_ids: dict[str, list[int]]
    logprobs: dict[str, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()
    forced_token_ids: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    num_native_calls: int = 0
    num_merged_rows: int = 0  # rows whose attention read blocks together with other sequences
