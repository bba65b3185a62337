"""Scheduler: one behaviour a test, each over a FakeExecutor that checks the KV of every step."""

from collections.abc import Sequence

import pytest

from octavo.config import SchedulerSection
from octavo.core.messages import FinishReason, TokenLogprobs
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import ModelRunnerOutput
from octavo.errors import (
    ConfigError,
    ContextLengthError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLargeError,
)
from octavo.testing.invariants import check_idle
from tests.simulation.harness import Harness, make_request


def _harness(
    num_blocks: int = 64, *, enable_prefix_caching: bool = True, **limits: object
) -> Harness:
    """Blocks of 4 tokens; a context and a budget of 64."""
    fields = {"max_model_len": 64, "max_num_batched_tokens": 64, "max_num_seqs": 8} | limits
    return Harness(
        num_blocks=num_blocks,
        enable_prefix_caching=enable_prefix_caching,
        scheduler=SchedulerSection(**fields),  # type: ignore[arg-type]
    )


def _prompt(seed: int, length: int) -> list[int]:
    return [1 + (seed * 7 + i * 3) % 19 for i in range(length)]


# ---- budget and order


def test_running_first_then_waiting_under_one_budget() -> None:
    h = _harness(max_num_batched_tokens=10)
    h.add(make_request("a", _prompt(1, 6), eos=False))
    h.add(make_request("b", _prompt(2, 9), eos=False))
    assert h.step().num_scheduled_tokens == {"a": 6, "b": 4}
    assert h.step().num_scheduled_tokens == {"a": 1, "b": 5}
    assert h.step().num_scheduled_tokens == {"a": 1, "b": 1}
    assert h.scheduler.stats().num_chunked_prefills == 1
    h.run()
    check_idle(h.scheduler)


def test_a_prefill_leaves_one_token_to_each_decode_behind_it() -> None:
    h = _harness(max_num_batched_tokens=8, policy="priority")
    for name in ("b", "c"):
        h.add(make_request(name, _prompt(1, 2), eos=False, max_tokens=30, priority=1))
    h.step()
    h.add(make_request("a", _prompt(3, 40), eos=False))
    assert h.step().num_scheduled_tokens == {"b": 1, "c": 1, "a": 6}
    assert h.step().num_scheduled_tokens == {"a": 6, "b": 1, "c": 1}


def test_long_prefill_token_threshold() -> None:
    h = _harness(long_prefill_token_threshold=5)
    h.add(make_request("a", _prompt(1, 12)))
    h.add(make_request("b", _prompt(2, 3)))
    assert h.step().num_scheduled_tokens == {"a": 5, "b": 3}


def test_a_prompt_is_short_beside_decodes_and_whole_alone() -> None:
    h = _harness(max_num_batched_tokens=32, max_prefill_beside_decodes=5)
    h.add(make_request("a", _prompt(1, 12), eos=False, max_tokens=3))
    assert h.step().num_scheduled_tokens == {"a": 12}
    h.add(make_request("b", _prompt(2, 21), eos=False))
    assert h.step().num_scheduled_tokens == {"a": 1, "b": 5}
    assert h.step().num_scheduled_tokens == {"a": 1, "b": 5}  # the last token of a
    assert h.scheduler.stats().last_step_tokens == 6
    assert h.step().num_scheduled_tokens == {"b": 11}


def test_without_chunked_prefill_prompts_run_whole() -> None:
    h = _harness(enable_chunked_prefill=False)
    h.add(make_request("a", _prompt(1, 40), eos=False))
    h.add(make_request("b", _prompt(2, 30), eos=False))
    assert h.step().num_scheduled_tokens == {"a": 40}
    assert h.step().num_scheduled_tokens == {"a": 1, "b": 30}
    h.run()
    assert h.scheduler.stats().num_chunked_prefills == 0


def test_without_chunked_prefill_a_small_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least max_model_len=64"):
        _harness(enable_chunked_prefill=False, max_num_batched_tokens=63)


def test_max_num_seqs() -> None:
    h = _harness(max_num_seqs=2)
    for name in "abc":
        h.add(make_request(name, _prompt(1, 3), max_tokens=2, eos=False))
    assert list(h.step().num_scheduled_tokens) == ["a", "b"]
    assert h.scheduler.stats().num_waiting == 1
    h.step()
    assert list(h.step().num_scheduled_tokens) == ["c"]


def test_priority_goes_first() -> None:
    h = _harness(max_num_seqs=1, policy="priority")
    for name, priority in (("low", 5), ("high", -1), ("mid", 0)):
        h.add(make_request(name, _prompt(1, 3), max_tokens=1, priority=priority))
    assert [next(iter(h.step().num_scheduled_tokens)) for _ in range(3)] == ["high", "mid", "low"]


# ---- admission


@pytest.mark.parametrize("chunk", [7, 64])
def test_a_prompt_may_fill_the_context_and_the_cache(chunk: int) -> None:
    h = _harness(num_blocks=8, max_model_len=32, max_num_batched_tokens=chunk)
    h.add(make_request("a", [1] * 20, max_tokens=9, eos=False))
    h.add(make_request("b", [2] * 32, max_tokens=5, eos=False))
    h.run()
    assert (len(h.outputs["a"]), len(h.outputs["b"])) == (9, 1), "nothing fits behind b"


def test_bad_requests_are_refused_with_the_numbers() -> None:
    h = _harness(num_blocks=8, max_model_len=40)
    h.add(make_request("a", [1]))
    with pytest.raises(InvalidRequestError, match="'a'"):
        h.scheduler.add_request(make_request("a", [1]))
    with pytest.raises(InvalidRequestError, match="empty"):
        h.scheduler.add_request(make_request("b", []))
    with pytest.raises(ContextLengthError, match=r"41 tokens.* is 40 tokens"):
        h.scheduler.add_request(make_request("b", [1] * 41))
    with pytest.raises(RequestTooLargeError, match=r"33 tokens.* holds 32"):
        h.scheduler.add_request(make_request("b", [1] * 33))
    with pytest.raises(InvalidRequestError, match="fork_of is 'a'"):
        h.scheduler.add_request(make_request("b", [2], fork_of="a"))
    h.add(make_request("b", [1] * 31))
    h.run()
    h.add(make_request("a", [1]))
    h.run()


def test_the_waiting_queue_is_bounded_by_groups() -> None:
    h = _harness(max_num_waiting=2)
    h.add(make_request("a", [1]))
    h.add(make_request("b", [1]))
    with pytest.raises(QueueFullError, match="2 requests wait"):
        h.scheduler.add_request(make_request("c", [1]))
    h.add(make_request("b.1", [1], fork_of="b"))  # part of a group that was taken
    with pytest.raises(QueueFullError):
        h.scheduler.add_request(make_request("c.1", [1], fork_of="c"))
    h.step()
    h.add(make_request("c", [1]))
    h.run()


def test_an_admission_leaves_blocks_for_those_that_run() -> None:
    h = _harness(num_blocks=6)
    h.add(make_request("a", _prompt(1, 8), max_tokens=20, eos=False))
    h.add(make_request("b", _prompt(2, 16), max_tokens=2, eos=False))
    assert list(h.step().num_scheduled_tokens) == ["a"], "4 blocks are free, one is a's next"
    h.run()
    assert h.scheduler.stats().num_preemptions == 0


# ---- preemption


def test_the_latest_arrival_is_preempted_and_comes_back() -> None:
    h = _harness(num_blocks=8)
    for i, name in enumerate("abc"):
        h.add(make_request(name, _prompt(i, 8), max_tokens=16, eos=False))
    order: list[str] = []
    while h.scheduler.has_requests():
        step = h.step()
        order += step.finished_request_ids
    assert h.scheduler.stats().num_preemptions > 0
    assert order[:3] == ["c", "b", "a"], "two victims, then the oldest, which is never one"
    assert set(h.finish_reasons) == {"a", "b", "c"}


def test_a_preempted_request_waits_until_all_its_tokens_fit() -> None:
    h = _harness(num_blocks=6, enable_prefix_caching=False)
    h.add(make_request("a", _prompt(1, 8), max_tokens=16, eos=False))
    h.add(make_request("b", _prompt(2, 8), max_tokens=16, eos=False))
    preempted_at = resumed_with = None
    while h.scheduler.has_requests():
        before = h.kv.num_free_blocks
        step = h.step()
        if step.finished_request_ids == ("b",) and preempted_at is None:
            preempted_at = len(h.outputs["b"])
        elif preempted_at is not None and step.new_requests:
            resumed_with = step.new_requests[0]
            assert before >= -(-len(resumed_with.token_ids) // 4)
    assert preempted_at is not None and resumed_with is not None
    assert resumed_with.token_ids[8:] == h.outputs["b"][:preempted_at], "its output is kept"
    assert resumed_with.num_computed_tokens == 0


def test_a_resumed_request_reads_its_own_blocks_from_the_cache() -> None:
    h = _harness(num_blocks=6)
    h.add(make_request("a", _prompt(1, 8), max_tokens=9, eos=False))
    h.add(make_request("b", _prompt(2, 8), max_tokens=9, eos=False))
    resumed = []
    while h.scheduler.has_requests():
        resumed += [n.num_computed_tokens for n in h.step().new_requests]
    assert h.scheduler.stats().num_preemptions == 1
    assert resumed[:2] == [0, 0] and resumed[2] > 0
    assert h.scheduler.stats().prefix_cache_hits == 0, "its own blocks are no prefix hits"


def test_a_request_alone_may_fill_the_whole_cache() -> None:
    h = _harness(num_blocks=3)
    h.add(make_request("a", _prompt(1, 6), max_tokens=50, eos=False))
    h.run(max_steps=20)
    assert h.finish_reasons["a"] == FinishReason.LENGTH
    assert len(h.outputs["a"]) == 3 * 4 + 1 - 6, "the last token needs no slot"
    assert h.scheduler.stats().num_preemptions == 0


# ---- prefix sharing


def test_requests_of_one_step_share_their_prefix() -> None:
    h = _harness()
    for name in "abc":
        h.add(make_request(name, [*_prompt(1, 12), ord(name) % 19]))
    assert h.step().num_scheduled_tokens == {"a": 13, "b": 1, "c": 1}
    stats = h.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (39, 24)
    assert h.executor.num_shared_in_step == 6
    assert h.num_cached == {"a": 0, "b": 12, "c": 12}
    h.run()


def test_running_prompts_skip_what_others_computed_meanwhile() -> None:
    h = _harness(long_prefill_token_threshold=8)
    for name in "abc":
        h.add(make_request(name, _prompt(1, 40), max_tokens=2, eos=False))
    steps = 0
    while len(h.num_cached) < 3:
        h.step()
        steps += 1
    assert steps < 5, "alone it takes 5 steps of 8 tokens"
    h.run()


def test_cached_prefix_after_the_first_request_is_gone() -> None:
    h = _harness()
    h.add(make_request("a", _prompt(1, 13)))
    h.run()
    h.add(make_request("b", _prompt(1, 13)))
    h.add(make_request("c", _prompt(1, 13), params=SamplingParams(cache_salt="x")))
    assert h.step().num_scheduled_tokens == {"b": 1, "c": 13}
    h.run()
    assert h.scheduler.reset_prefix_cache() > 0
    assert h.scheduler.stats().num_cached_blocks == 0
    h.add(make_request("d", _prompt(1, 13)))
    assert h.step().num_scheduled_tokens == {"d": 13}


def test_prefix_caching_off() -> None:
    h = _harness(enable_prefix_caching=False)
    for name in "ab":
        h.add(make_request(name, _prompt(1, 13)))
    assert h.step().num_scheduled_tokens == {"a": 13, "b": 13}
    stats = h.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.num_cached_blocks) == (0, 0)
    h.run()


# ---- n > 1


def _add_group(h: Harness, num_prompt: int, n: int = 3, **fields: object) -> None:
    for i in range(n):
        h.add(
            make_request(
                f"g{i}",
                _prompt(4, num_prompt),
                sample_index=i,
                fork_of="g0" if i else None,
                **fields,  # type: ignore[arg-type]
            )
        )


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("num_prompt", [9, 10, 11, 12])
def test_samples_share_the_prompt(num_prompt: int, enable_prefix_caching: bool) -> None:
    h = _harness(enable_prefix_caching=enable_prefix_caching)
    _add_group(h, num_prompt, max_tokens=9, eos=False)
    assert h.step().num_scheduled_tokens == {"g0": num_prompt}
    stats = h.scheduler.stats()
    assert stats.allocated_slots == 12 and stats.live_tokens == num_prompt
    assert h.step().num_scheduled_tokens == {"g0": 1, "g1": 1, "g2": 1}
    h.run()
    assert len({tuple(h.outputs[f"g{i}"]) for i in range(3)}) == 3
    # At 9 only g0 copies a slot: the others compute the first slot of a block again, into a fresh
    # one. At 12 g0 goes on in a new block, and the others copy the full one. Otherwise all write
    # into the shared block, and its last holder need not copy.
    copies = {9: 1, 10: 2, 11: 2, 12: 2}[num_prompt]
    assert h.scheduler.stats().num_copies_on_write == copies
    check_idle(h.scheduler)


def test_children_wait_for_the_whole_prompt_without_blocking_others() -> None:
    h = _harness(max_num_batched_tokens=8)
    _add_group(h, 14, n=2)
    h.add(make_request("x", _prompt(9, 3)))
    assert h.step().num_scheduled_tokens == {"g0": 8}
    assert h.step().num_scheduled_tokens == {"g0": 6, "x": 2}
    assert "g1" in h.step().num_scheduled_tokens
    h.run()


def test_sample_0_may_end_with_its_first_token() -> None:
    h = _harness(enable_prefix_caching=False)
    _add_group(h, 10, max_tokens=1)
    h.step()
    assert "g0" in h.finish_reasons
    assert h.step().num_scheduled_tokens == {"g1": 1, "g2": 1}
    check_idle(h.scheduler)


@pytest.mark.parametrize("in_flight", [True, False])
def test_children_survive_the_abort_of_sample_0(in_flight: bool) -> None:
    h = _harness(max_num_batched_tokens=8)
    _add_group(h, 10)
    h.begin_step()
    if in_flight:
        h.abort("g0")
    h.end_step()
    if not in_flight:
        h.abort("g0")
    h.run()
    assert set(h.finish_reasons) == {"g1", "g2"}
    check_idle(h.scheduler)


def test_waiting_forks_give_way_under_pressure() -> None:
    h = _harness(num_blocks=6, max_num_seqs=1, enable_prefix_caching=False)
    _add_group(h, 14, n=2, max_tokens=9, eos=False)
    h.step()
    assert h.scheduler.stats().num_waiting == 1
    h.run()
    assert h.scheduler.stats().num_preemptions == 0
    assert set(h.finish_reasons) == {"g0", "g1"}


def test_waiting_forks_cannot_block_the_head_of_the_queue() -> None:
    h = _harness(num_blocks=6, max_num_seqs=1, policy="priority", enable_prefix_caching=False)
    _add_group(h, 14, n=2, max_tokens=1, priority=5)
    h.step()  # g0 ends; g1 holds 4 of 6 blocks and waits
    h.add(make_request("x", _prompt(2, 20), max_tokens=2, eos=False))
    assert h.step().num_scheduled_tokens == {"x": 20}
    h.run()
    check_idle(h.scheduler)


# ---- abort and leaving


def test_abort_while_waiting_running_and_in_flight() -> None:
    h = _harness(max_num_seqs=2)
    for name in "abc":
        h.add(make_request(name, _prompt(1, 5), eos=False, max_tokens=50))
    h.step()
    h.abort("c")
    h.begin_step()
    h.abort("a")
    h.abort("unknown")
    h.end_step()
    h.abort("b")
    assert not h.scheduler.has_requests()
    check_idle(h.scheduler)


def test_blocks_of_an_aborted_writer_stay_valid_for_who_shares_them() -> None:
    h = _harness()
    h.add(make_request("a", _prompt(1, 13), eos=False))
    h.add(make_request("b", _prompt(1, 13), eos=False))
    assert h.begin_step().num_scheduled_tokens == {"a": 13, "b": 1}
    h.abort("a")
    h.end_step()
    h.run()
    assert set(h.finish_reasons) == {"b"}


def test_a_request_the_worker_cannot_serve_ends_alone() -> None:
    h = _harness()
    for name in "ab":
        h.add(make_request(name, _prompt(1, 5)))
    h.executor.failing.add("a")
    h.step()
    assert h.finish_reasons["a"] == FinishReason.ERROR
    h.run()
    assert set(h.finish_reasons) == {"a", "b"}
    check_idle(h.scheduler)


def test_the_worker_hears_of_everyone_who_left() -> None:
    h = _harness()
    h.add(make_request("a", _prompt(1, 5), max_tokens=1))
    h.add(make_request("b", _prompt(2, 5), max_tokens=1))
    h.step()
    idle = h.step()
    assert idle.num_scheduled_tokens == {} and idle.finished_request_ids == ()
    h.add(make_request("a", _prompt(3, 5), max_tokens=1))  # an id may be used again
    assert h.step().finished_request_ids == ("a", "b")


def test_one_step_at_a_time() -> None:
    h = _harness()
    h.add(make_request("a", [1, 2]))
    h.begin_step()
    with pytest.raises(AssertionError, match="has not come back"):
        h.scheduler.schedule()
    h.end_step()


# ---- news


def test_prompt_logprobs_come_whole_with_the_first_token() -> None:
    h = _harness(max_num_batched_tokens=4)
    params = SamplingParams(prompt_logprobs=1, logprobs=0)
    h.add(make_request("a", _prompt(1, 11), params=params, max_tokens=3))
    h.add(make_request("b", _prompt(1, 1), params=params, max_tokens=3))
    h.run()
    assert h.prompt_logprobs == {"a": 10, "b": 0}


def test_prompt_logprobs_do_not_read_the_cache() -> None:
    h = _harness()
    h.add(make_request("a", _prompt(1, 11)))
    h.run()
    h.add(make_request("b", _prompt(1, 11), params=SamplingParams(prompt_logprobs=1)))
    assert h.step().num_scheduled_tokens == {"b": 11}
    h.run()
    assert h.prompt_logprobs == {"b": 10}


def test_prompt_logprobs_restart_with_the_prompt() -> None:
    h = _harness(num_blocks=9, max_num_batched_tokens=6)
    params = SamplingParams(prompt_logprobs=1)
    h.add(make_request("a", _prompt(1, 4), max_tokens=27, eos=False))
    h.step()
    h.add(make_request("b", _prompt(2, 22), params=params, max_tokens=2, eos=False))
    h.step()
    b = h.scheduler._requests["b"]
    assert 0 < b.num_computed_tokens < 22 and b.prompt_logprobs
    h.scheduler._preempt(b)
    h.run()
    assert h.prompt_logprobs == {"b": 21}


def test_times_and_counters() -> None:
    h = _harness()
    h.add(make_request("a", _prompt(1, 5), max_tokens=3, eos=False))
    step = h.begin_step()
    result = h.executor.collect(h.executor.submit(step))
    (news,) = h.scheduler.update_from_output(step, result).outputs
    assert news.queued_s is not None and news.queued_s > 0
    assert news.prefill_s is not None and news.prefill_s > 0
    h.outputs["a"] += news.new_token_ids
    h.num_cached["a"] = 0
    stats = h.scheduler.stats()
    assert (stats.num_steps, stats.num_native_calls, stats.last_step_tokens) == (1, 1, 5)
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (5, 1)
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (1, 0, 62)
    assert (stats.live_tokens, stats.allocated_slots) == (5, 8)
    assert stats.step_time_s > 0
    assert h.scheduler.stats() is not stats


# ---- forced tokens


def _jump(h: Harness, drawn: int, forced: list[int], *, completed: bool = False,
          scored: Sequence[int] = ()) -> tuple[list[int], FinishReason | None]:
    """A step in which "a" draws a token and others are forced behind it; what is news."""
    step = h.scheduler.schedule()
    entries = [TokenLogprobs(t, -1.0, 1, [], []) for t in (*scored, drawn) if t >= 0]
    news = h.scheduler.update_from_output(step, ModelRunnerOutput(
        step.step_id, {"a": [drawn]} if drawn >= 0 else {}, {"a": entries},
        forced_token_ids={"a": forced}, completed=frozenset({"a"} if completed else ())))
    (output,) = news.outputs
    if output.logprobs is not None:
        assert [e.token_id for e in output.logprobs] == output.new_token_ids
    return output.new_token_ids, output.finish_reason


def test_forced_tokens_run_with_the_next_draw() -> None:
    h = _harness()
    h.add(make_request("a", _prompt(1, 6), max_tokens=30))
    assert _jump(h, 5, [6, 7, 8]) == ([5, 6, 7, 8], None)
    step = h.scheduler.schedule()
    assert step.num_scheduled_tokens == {"a": 4}
    (cached,) = step.cached_requests
    assert cached.new_token_ids == [6, 7, 8] and cached.num_unscored_tokens == 0
    news = h.scheduler.update_from_output(step, ModelRunnerOutput(step.step_id, {"a": [9]}))
    assert news.outputs[0].new_token_ids == [9]
    assert h.scheduler.stats().num_jump_forward_tokens == 3


@pytest.mark.parametrize(("max_tokens", "stop_ids", "want"), [
    (3, [], ([5, 6, 7], FinishReason.LENGTH)), (4, [], ([5, 6, 7, 8], FinishReason.STOP)),
    (9, [6], ([5, 6], FinishReason.STOP)), (9, [], ([5, 6, 7, 8], FinishReason.STOP)),
])
def test_a_jump_ends_where_drawing_would(
    max_tokens: int, stop_ids: list[int], want: tuple[list[int], FinishReason]
) -> None:
    h = _harness()
    params = SamplingParams(stop_token_ids=stop_ids)
    h.add(make_request("a", _prompt(1, 6), max_tokens=max_tokens, params=params))
    assert _jump(h, 5, [6, 7, 8], completed=True) == want
    check_idle(h.scheduler)


def test_forced_tokens_with_logprobs_are_news_when_scored() -> None:
    h = _harness(max_num_batched_tokens=6)
    params = SamplingParams(logprobs=0)
    h.add(make_request("a", _prompt(1, 6), max_tokens=9, params=params))
    assert _jump(h, 5, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == ([5], None)
    # eight of the nine fit, and the last one is scored, never computed
    assert _jump(h, -1, [], scored=[1, 2, 3, 4, 5, 6]) == ([1, 2, 3, 4, 5, 6], None)
    assert _jump(h, -1, [], scored=[7, 8]) == ([7, 8], FinishReason.LENGTH)
    check_idle(h.scheduler)
