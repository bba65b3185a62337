"""The scheduler's choices: numbers in, numbers out."""

import dataclasses

import pytest

from octavo.config import SchedulerSection
from octavo.core.request import Request
from octavo.errors import ConfigError
from octavo.scheduler import policy
from octavo.scheduler.queue import RunningList
from tests.simulation.harness import make_request


def _request(
    index: int, *, num_prompt: int = 5, max_tokens: int = 10, priority: int = 0
) -> Request:
    message = make_request(f"r{index}", [1] * num_prompt, max_tokens=max_tokens, priority=priority)
    return Request.from_message(message, arrival_index=index, now_s=0.0)


@pytest.mark.parametrize(
    ("num_remaining", "token_budget", "threshold", "expected"),
    [(10, 64, 0, 10), (10, 6, 0, 6), (10, 64, 4, 4), (10, 3, 4, 3), (4, 64, 4, 4), (10, 0, 0, 0)],
)
def test_chunk_size(num_remaining: int, token_budget: int, threshold: int, expected: int) -> None:
    config = SchedulerSection(long_prefill_token_threshold=threshold)
    size = policy.chunk_size(num_remaining, token_budget=token_budget, config=config)
    assert size == expected


def test_without_chunks_it_is_all_or_nothing() -> None:
    config = SchedulerSection(enable_chunked_prefill=False, long_prefill_token_threshold=2)
    assert policy.chunk_size(10, token_budget=10, config=config) == 10
    assert policy.chunk_size(10, token_budget=9, config=config) == 0


def test_the_victim_is_the_latest_of_the_lowest_priority() -> None:
    running = RunningList("priority")
    for index, priority in ((0, 3), (1, 0), (2, 3), (3, 1)):
        running.add(_request(index, priority=priority))
    assert policy.preemption_victim(running).request_id == "r2"


def test_a_request_alone_is_no_victim() -> None:
    running = RunningList("fcfs")
    running.add(_request(0))
    with pytest.raises(AssertionError):
        policy.preemption_victim(running)


def test_reserved_blocks() -> None:
    def reserved(request: Request, num_held: int, max_model_len: int = 1000) -> int:
        return policy.reserved_blocks(
            [request],
            num_blocks_held=lambda _: num_held,
            block_size=4,
            max_model_len=max_model_len,
        )

    assert reserved(_request(0, num_prompt=5, max_tokens=10), 2) == 1, "its output may grow"
    assert reserved(_request(0, num_prompt=17, max_tokens=10), 2) == 3 + 1, "its prompt is coming"
    assert reserved(_request(0, num_prompt=5, max_tokens=4), 2) == 0, "it ends within its blocks"
    assert reserved(_request(0, num_prompt=5, max_tokens=5), 2) == 1
    assert reserved(_request(0, num_prompt=5, max_tokens=99), 2, max_model_len=9) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold is -1"),
        ({"policy": "lifo"}, "policy is 'lifo'"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8, "max_model_len": 9},
            "at least max_model_len=9",
        ),
    ],
)
def test_limits_that_cannot_work_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy.verify_limits(SchedulerSection(**fields))


def test_a_step_with_decodes_has_fewer_prompt_tokens() -> None:
    config = SchedulerSection(max_num_batched_tokens=512, max_prefill_beside_decodes=256)
    assert [policy.token_budget(config, n) for n in (0, 1, 16, 400)] == [512, 257, 272, 512]
    whole = dataclasses.replace(config, enable_chunked_prefill=False)
    assert policy.token_budget(whole, 5) == 512  # a prompt runs whole: it must find room
    off = dataclasses.replace(config, max_prefill_beside_decodes=0)
    assert policy.token_budget(off, 5) == 512
