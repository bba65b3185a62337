"""KVCacheManager: sharing, copy on write, fork, eviction, usage."""

import pytest

from octavo.config import CacheSection
from octavo.core.request import Request
from octavo.core.step import BlockCopy
from octavo.errors import ConfigError
from octavo.kvcache.manager import KVCacheManager
from octavo.testing.invariants import check_kv_cache


def _manager(num_blocks: int = 8, **fields: object) -> KVCacheManager:
    config = CacheSection(block_size=4, num_blocks=num_blocks, **fields)  # type: ignore[arg-type]
    return KVCacheManager(config, b"model")


def _compute(kv: KVCacheManager, request: Request, num_tokens: int) -> list[BlockCopy]:
    """One step of one request."""
    copies: list[BlockCopy] = []
    assert kv.allocate_slots(request, num_tokens, copies=copies) is not None
    request.num_computed_tokens += num_tokens
    kv.commit(request)
    kv.end_step()
    check_kv_cache(kv)
    return copies


def test_blocks_on_demand(make) -> None:
    kv, request = _manager(), make(list(range(6)))
    assert kv.num_blocks_needed(request, 6) == 2
    assert kv.allocate_slots(request, 3, copies=[]) == [0]
    request.num_computed_tokens = 3
    assert kv.allocate_slots(request, 1, copies=[]) == [], "the last block has room"
    request.num_computed_tokens = 4
    assert kv.allocate_slots(request, 2, copies=[]) == [1]
    assert kv.block_ids(request) == [0, 1] and kv.num_free_blocks == 6


def test_refusal_changes_nothing(make) -> None:
    kv, request = _manager(num_blocks=2), make(list(range(9)))
    assert kv.allocate_slots(request, 9, copies=[]) is None
    assert kv.num_free_blocks == 2 and kv.num_blocks_held(request) == 0
    check_kv_cache(kv)


def test_prefix_is_shared_but_never_the_whole_prompt(make) -> None:
    kv, first = _manager(), make(list(range(8)))
    _compute(kv, first, 8)
    second = make(list(range(8)))
    found = kv.get_computed_blocks(second)
    assert [b.block_id for b in found] == [0], "at least one token is left to compute"
    assert kv.num_blocks_needed(second, 8, found) == 1
    assert kv.allocate_slots(second, 4, copies=[], computed_blocks=found) == [0, 2]
    assert second.num_computed_tokens == 4
    longer = make([*range(8), 9])
    assert [b.block_id for b in kv.get_computed_blocks(longer)] == [0, 1]


def test_requests_that_must_compute_everything_find_nothing(make) -> None:
    kv, first = _manager(), make(list(range(9)))
    _compute(kv, first, 9)
    assert kv.get_computed_blocks(make(list(range(9)), prompt_logprobs=0)) == []
    assert kv.get_computed_blocks(make(list(range(9)), skip_reading_prefix_cache=True)) == []
    assert kv.get_computed_blocks(make(list(range(9)), cache_salt="other")) == []
    assert len(kv.get_computed_blocks(make(list(range(9))))) == 2


def test_a_block_written_in_this_step_is_shared(make) -> None:
    kv, first, second = _manager(), make(list(range(9))), make(list(range(9)))
    kv.allocate_slots(first, 9, copies=[])
    found = kv.get_computed_blocks(second)
    assert [b.block_id for b in found] == [0, 1]
    kv.allocate_slots(second, 1, copies=[], computed_blocks=found)
    for request, num_tokens in ((first, 9), (second, 1)):
        request.num_computed_tokens += num_tokens
        kv.commit(request)
    kv.end_step()
    kv.free(first)
    check_kv_cache(kv)
    assert kv.block_ids(second)[:2] == [0, 1]


def test_a_block_not_filled_in_this_step_is_not_shared(make) -> None:
    kv, first = _manager(), make(list(range(9)))
    kv.allocate_slots(first, 7, copies=[])
    assert [b.block_id for b in kv.get_computed_blocks(make(list(range(9))))] == [0]


def test_equal_blocks_computed_twice_become_one(make) -> None:
    kv = _manager()
    first, second = make(list(range(6))), make(list(range(6)), skip_reading_prefix_cache=True)
    _compute(kv, first, 6)
    _compute(kv, second, 6)
    assert kv.take_replaced(second) == ((0, 0),), "the worker is told"
    assert kv.take_replaced(second) == ()
    assert kv.num_free_blocks == 8 - 3


def test_fork_of_a_partial_block_copies_on_write(make) -> None:
    kv, parent, child = _manager(), make(list(range(6))), make(list(range(6)))
    _compute(kv, parent, 6)
    kv.fork(parent, child)
    assert child.num_computed_tokens == 5 and kv.num_free_blocks == 6
    parent.token_ids.append(9)
    assert _compute(kv, parent, 1) == [BlockCopy(1, 2, 2)], "the parent must not write shared slots"
    assert kv.take_replaced(parent) == ((1, 2),)
    assert _compute(kv, child, 1) == [], "and now the block is the child's alone"
    assert kv.block_ids(child) == [0, 1] and kv.block_ids(parent) == [0, 2]
    assert kv.num_copies_on_write == 1


def test_fork_of_a_full_block_recomputes_one_token(make) -> None:
    kv, parent, child = _manager(), make(list(range(8))), make(list(range(8)))
    _compute(kv, parent, 8)
    kv.fork(parent, child)
    kv.free(parent)
    check_kv_cache(kv)
    assert _compute(kv, child, 1) == [BlockCopy(1, 2, 3)], "a cached block is not written either"
    assert kv.block_ids(child) == [0, 1], "its copy turned out equal to the cached block"


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_fork_at_the_first_slot_of_a_block_copies_nothing(make, enable_prefix_caching) -> None:
    kv = _manager(enable_prefix_caching=enable_prefix_caching)
    parent, child = make(list(range(5))), make(list(range(5)))
    _compute(kv, parent, 5)
    kv.fork(parent, child)
    assert _compute(kv, child, 1) == []
    assert kv.block_ids(child) == [0, 2] and kv.num_copies_on_write == 0


def test_eviction_is_lru_and_takes_tails_first(make) -> None:
    kv = _manager(num_blocks=4)
    old, new = make([1] * 9), make([2] * 4)
    _compute(kv, old, 8)
    _compute(kv, new, 4)
    kv.free(old)
    kv.free(new)
    assert kv.num_cached_blocks == 3 and kv.num_free_blocks == 4
    _compute(kv, make([3] * 8), 8)  # an empty block, then the tail of the oldest
    assert [b.block_id for b in kv.get_computed_blocks(make([1] * 9))] == [0]
    assert len(kv.get_computed_blocks(make([2] * 5))) == 1


def test_reset_keeps_what_is_held(make) -> None:
    kv, held, gone = _manager(), make([1] * 9), make([2] * 9)
    _compute(kv, held, 8)
    _compute(kv, gone, 8)
    kv.free(gone)
    assert kv.reset_prefix_cache() == 2
    check_kv_cache(kv)
    assert kv.get_computed_blocks(make([2] * 9)) == []
    assert len(kv.get_computed_blocks(make([1] * 9))) == 2


def test_usage_counts_shared_blocks_once(make) -> None:
    kv, first, second = _manager(), make(list(range(9))), make([*range(8), 20, 21])
    _compute(kv, first, 9)
    kv.allocate_slots(second, 2, copies=[], computed_blocks=kv.get_computed_blocks(second))
    second.num_computed_tokens += 2
    kv.commit(second)
    assert kv.usage([(first, 9), (second, 10)]) == (8 + 1 + 2, 4 * 4)


def test_dtype_is_part_of_the_namespace(make) -> None:
    hashes = set()
    for dtype in ("f32", "bf16", "int8"):
        kv, request = _manager(dtype=dtype), make(list(range(5)))
        _compute(kv, request, 5)
        hashes.add(request.block_hashes[0])
    assert len(hashes) == 3


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_blocks is 0"):
        _manager(num_blocks=0)
