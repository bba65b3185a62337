"""Contiguous reservations: the buddy allocator, and the manager under the real scheduler."""

import random

import pytest

from octavo.core.messages import EngineCoreRequest
from octavo.errors import ConfigError
from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.engine_arm import greedy_request
from octavo.reproduce.reservation import (
    BuddyAllocator,
    Reserve,
    ReservingKVCacheManager,
    reserve_max,
    reserve_oracle,
    reserve_pow2,
)
from octavo.testing.fake_executor import lone_output
from tests.reproduce.simulated import VOCAB, section, simulated_arm

MAX_LEN = 64


def test_runs_are_aligned_and_apart_and_join_again() -> None:
    rng = random.Random(1)
    buddy = BuddyAllocator(64)
    held: list[tuple[int, int]] = []
    refused = 0
    for _ in range(3000):
        order = rng.choice((0, 0, 1, 2, 3, 4))
        if held and rng.random() < 0.48:
            buddy.give_back(*held.pop(rng.randrange(len(held))))
        elif buddy.has_run(order):
            held.append((buddy.take(order), order))
        else:
            refused += 1
            free = 64 - sum(1 << o for _, o in held)
            aligned = [s for s in range(0, 64, 1 << order)
                       if all(s + (1 << order) <= t or t + (1 << o) <= s for t, o in held)]
            assert not aligned, f"a run of {1 << order} was there, of {free} free"
        units = [u for start, o in held for u in range(start, start + (1 << o))]
        assert len(units) == len(set(units)) and all(0 <= u < 64 for u in units)
        assert all(start % (1 << o) == 0 for start, o in held)
    assert refused > 50
    for run in held:
        buddy.give_back(*run)
    assert buddy.take(6) == 0


@pytest.mark.parametrize("units, order", [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6)])
def test_orders_round_up(units: int, order: int) -> None:
    assert BuddyAllocator.order_of(units) == order


def test_a_pool_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_blocks is 48: a buddy allocator"):
        ReservingKVCacheManager(section(48), b"", reserve=reserve_max(MAX_LEN))


def _requests(count: int) -> list[EngineCoreRequest]:
    rng = random.Random(2)
    return [greedy_request(f"r{i}", [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))],
                           rng.randint(1, 30)) for i in range(count)]


@pytest.mark.parametrize("reserve, most_tokens", [
    (reserve_max(MAX_LEN), lambda r: MAX_LEN),
    (reserve_pow2(MAX_LEN), lambda r: len(r.prompt_token_ids) + 2 * r.max_tokens),
    (reserve_oracle(MAX_LEN), lambda r: len(r.prompt_token_ids) + r.max_tokens),
])  # fmt: skip
def test_runs_are_contiguous_and_outputs_are_those_of_lone_requests(
    reserve: Reserve, most_tokens: object,
) -> None:
    kv = ReservingKVCacheManager(section(64), b"", reserve=reserve)
    arm = simulated_arm(kv, max_model_len=MAX_LEN)
    requests = _requests(60)
    by_id = {r.request_id: r for r in requests}
    check = arm.after_step
    seen = 0

    def after_step() -> None:
        nonlocal seen
        check()
        for request_id, table in kv._tables.items():
            ids = [block.block_id for block in table.blocks]
            assert ids == list(range(ids[0], ids[0] + len(ids))) and ids[0] % len(ids) == 0
            assert callable(most_tokens)
            assert len(ids) < 2 * -(-most_tokens(by_id[request_id]) // kv.block_size)
            seen += 1

    arm.after_step = after_step
    arm.add(requests)
    arm.run()
    assert seen > 100 and arm.core.stats().num_preemptions == 0
    assert max(s.num_waiting for s in arm.samples) > 20, "memory was never short"
    assert kv.num_free_blocks == kv.num_blocks and kv._buddy.take(6) == 0
    for request in requests:
        assert arm.outputs[request.request_id] == lone_output(
            request, vocab_size=VOCAB, max_model_len=MAX_LEN, capacity_tokens=256)


def test_reserving_less_runs_more_at_once_and_paging_most() -> None:
    peaks = []
    for reserve in (reserve_max(MAX_LEN), reserve_pow2(MAX_LEN), reserve_oracle(MAX_LEN), None):
        kv = (KVCacheManager(section(64), b"") if reserve is None
              else ReservingKVCacheManager(section(64), b"", reserve=reserve))
        arm = simulated_arm(kv, max_model_len=MAX_LEN)
        arm.add(_requests(60))
        arm.run()
        peaks.append(max(s.num_running for s in arm.samples))
    assert peaks[0] == 4 and peaks == sorted(peaks) and peaks[-1] >= 2 * peaks[0]
