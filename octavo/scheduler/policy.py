"""The scheduler's choices, as plain functions of numbers. No state, no side effects."""

from collections.abc import Callable, Iterable

from octavo.config import SchedulerSection
from octavo.core.request import Request
from octavo.errors import ConfigError
from octavo.scheduler.queue import RunningList


def verify_limits(config: SchedulerSection) -> None:
    """Raise ConfigError for limits that cannot work."""
    for field in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "max_num_waiting"):
        if getattr(config, field) < 1:
            raise ConfigError(f"{field} is {getattr(config, field)}: give at least 1", param=field)
    if config.long_prefill_token_threshold < 0:
        raise ConfigError(
            f"long_prefill_token_threshold is {config.long_prefill_token_threshold}: "
            "give 0 (off) or a positive count",
            param="long_prefill_token_threshold",
        )
    if config.policy not in ("fcfs", "priority"):
        raise ConfigError(f"policy is {config.policy!r}: give fcfs or priority", param="policy")
    if not config.enable_chunked_prefill and (
        config.max_num_batched_tokens < config.max_model_len
    ):
        raise ConfigError(
            f"max_num_batched_tokens is {config.max_num_batched_tokens}: without chunked prefill "
            f"a whole prompt runs in one step, so give at least max_model_len="
            f"{config.max_model_len}, or turn chunked prefill on",
            param="max_num_batched_tokens",
        )


def token_budget(config: SchedulerSection, num_decodes: int) -> int:
    """Tokens of one step in which `num_decodes` requests decode.

    A step takes as long as its prompt tokens do, and every stream waits for it: beside decodes
    there are fewer of them (chunked prefill, Sarathi-Serve, arXiv:2403.02310).
    """
    most = config.max_prefill_beside_decodes
    if not most or not num_decodes or not config.enable_chunked_prefill:
        return config.max_num_batched_tokens
    return min(config.max_num_batched_tokens, num_decodes + most)


def chunk_size(
    num_remaining: int, *, token_budget: int, config: SchedulerSection, is_prompt: bool = True
) -> int:
    """Tokens of one request to run in this step; 0 = none.

    num_remaining: known tokens not yet computed. Without chunked prefill a prompt (and what a
    preempted request has drawn behind it) runs whole or not at all; forced tokens may be cut.
    """
    if is_prompt and not config.enable_chunked_prefill:
        return num_remaining if num_remaining <= token_budget else 0
    threshold = config.long_prefill_token_threshold
    if 0 < threshold < num_remaining:
        num_remaining = threshold
    return min(num_remaining, token_budget)


def preemption_victim(running: RunningList) -> Request:
    """The latest arrival of the lowest priority; never the only (so never the first) request."""
    assert len(running) > 1, "a request alone in the pool needs no victim"
    return running[len(running) - 1]


def final_num_kv_tokens(request: Request, max_model_len: int) -> int:
    """Most KV slots the request can ever fill: its last token is never computed."""
    longest = min(request.num_prompt_tokens + request.max_tokens, max_model_len) - 1
    return max(longest, request.num_prompt_tokens)  # a prompt may fill the context


def reserved_blocks(
    running: Iterable[Request],
    *,
    num_blocks_held: Callable[[Request], int],
    block_size: int,
    max_model_len: int,
) -> int:
    """Free blocks an admission must leave untouched, for requests that run already.

    num_blocks_held: the length of a request's block table. Two parts a running request:
    - the blocks of tokens that are known but not yet computed (a prompt in chunks): a prefill that
      was admitted never starves another one that was;
    - one block if its output may outgrow those. A request takes at most one new block in block_size
      decode steps, so with this watermark an admission causes no preemption for its first
      block_size steps. A bigger reserve would idle memory; none at all admits requests only to
      throw them out a few steps later.
    """
    reserved = 0
    for request in running:
        num_known = -(-len(request.token_ids) // block_size)
        reserved += num_known - num_blocks_held(request)
        if final_num_kv_tokens(request, max_model_len) > num_known * block_size:
            reserved += 1
    return reserved
