"""What must hold of scheduler and KV bookkeeping between steps, as assertions. For tests only:
they look inside, and take time linear in the pool.
"""

import hashlib
import struct
from collections import Counter

from octavo.core.request import RequestStatus
from octavo.kvcache.block_pool import KVCacheBlock
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.scheduler import Scheduler


def check_kv_cache(kv: KVCacheManager) -> None:
    """Free list, reference counts, tables and tree agree; every eviction will meet a leaf."""
    pool = kv._pool
    held: Counter[int] = Counter()
    for request_id, table in kv._tables.items():
        ids = [block.block_id for block in table.blocks]
        assert ids and len(set(ids)) == len(ids), f"{request_id}: bad table {ids}"
        held.update(ids)
    for block in pool.blocks:
        assert block.ref_cnt == held[block.block_id], f"{block} is in {held[block.block_id]} tables"
    free = list(pool.free_blocks())
    assert len(free) == pool.num_free == sum(b.ref_cnt == 0 for b in pool.blocks), "free list"
    assert pool.num_free + len(held) == len(pool.blocks), "a block leaked"
    for block in pool.blocks:
        linked = block.prev_free is not None and block.next_free is not None
        assert linked == (block.ref_cnt == 0), f"links of {block}"
    _check_tree(kv, free)
    _check_sharing(kv)


def _check_tree(kv: KVCacheManager, free: list[KVCacheBlock]) -> None:
    nodes = kv._tree.nodes()
    assert not kv._tree._pending, "pending blocks between steps"
    assert kv.enable_prefix_caching or not nodes, "caching is off"
    children: Counter[int] = Counter()
    for block_hash, block in nodes.items():
        assert block.block_hash == block_hash, f"hash of {block}"
        if block.parent is not None:
            assert block.parent.block_hash in nodes, f"orphan: {block}"
            assert block.parent.ref_cnt >= block.ref_cnt, f"held without its path: {block}"
            children[block.parent.block_id] += 1
    for block in kv._pool.blocks:
        assert block.num_children == children[block.block_id], f"children of {block}"
        assert (block.block_hash is not None) == (nodes.get(block.block_hash or b"") is block)
    place = {block.block_id: i for i, block in enumerate(free)}
    for block in free:
        if block.parent is not None and block.parent.ref_cnt == 0:
            assert place[block.block_id] < place[block.parent.block_id], f"evicted late: {block}"


def _check_sharing(kv: KVCacheManager) -> None:
    """A block in two tables is cached, or is the last one of a forked prompt."""
    for table in kv._tables.values():
        for i, block in enumerate(table.blocks):
            if kv.enable_prefix_caching:
                last = i == len(table.blocks) - 1
                assert block.ref_cnt == 1 or block.block_hash is not None or last, f"{block}"
                assert (block.block_hash is not None) or i >= table.num_committed, f"{block}"
                if i < table.num_committed:
                    before = table.blocks[i - 1] if i else None
                    assert block.parent is before, f"path of {block}"


def check_scheduler(scheduler: Scheduler) -> None:
    """Every request is in exactly one place, with the blocks and the counts that belong there."""
    kv, size = scheduler._kv, scheduler._kv.block_size
    check_kv_cache(kv)
    running, parked = list(scheduler._running), []
    for parent_id, children in scheduler._parked.items():
        assert parent_id in scheduler._requests and children, f"no parent: {parent_id}"
        parked += children
    waiting = list(scheduler._waiting)
    everyone = Counter(r.request_id for r in (*running, *parked, *waiting))
    assert everyone == Counter(list(scheduler._requests)), "a request is lost, or in two places"
    assert len(waiting) == len(scheduler._waiting)
    assert len(running) <= scheduler._max_running
    assert running == sorted(running, key=scheduler._running._rank), "running order"
    assert set(scheduler._forked) <= {r.request_id for r in waiting}
    assert set(kv._tables) == {r.request_id for r in running} | set(scheduler._forked), "tables"
    for request in running:
        assert request.status == RequestStatus.RUNNING
        assert 0 < request.num_computed_tokens < request.num_tokens
        blocks = kv._tables[request.request_id].blocks
        assert len(blocks) == -(-request.num_computed_tokens // size), f"{request.request_id}"
        full = request.num_computed_tokens // size
        assert kv._tables[request.request_id].num_committed == full
    for request in (*waiting, *parked):
        assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        if request.request_id in scheduler._forked:
            assert request.num_computed_tokens == request.num_prompt_tokens - 1
        else:
            assert request.num_computed_tokens == 0
    _check_hashes(scheduler)
    _check_usage(scheduler)


def _check_hashes(scheduler: Scheduler) -> None:
    """The hash of every cached block in a table is that of the request's own tokens."""
    kv, size = scheduler._kv, scheduler._kv.block_size
    if not kv.enable_prefix_caching:
        return
    for request_id, table in kv._tables.items():
        request = scheduler._requests[request_id]
        expected = kv._tree.root_hash(request.params.cache_salt)
        for i in range(table.num_committed):
            tokens = request.token_ids[i * size : (i + 1) * size]
            expected = hashlib.blake2b(
                expected + struct.pack(f"<{size}I", *tokens), digest_size=16
            ).digest()
            assert table.blocks[i].block_hash == expected, f"{request_id}: block {i}"


def _check_usage(scheduler: Scheduler) -> None:
    """stats() counts by shortcut what this counts slot by slot."""
    kv, size = scheduler._kv, scheduler._kv.block_size
    live: dict[int, int] = {}
    for request_id, table in kv._tables.items():
        computed = scheduler._requests[request_id].num_computed_tokens
        if request_id in scheduler._forked:
            computed += 1  # the last prompt token is there, and will be computed again
        for i, block in enumerate(table.blocks):
            filled = max(0, min(size, computed - i * size))
            live[block.block_id] = max(live.get(block.block_id, 0), filled)
    stats = scheduler.stats()
    assert stats.allocated_slots == len(live) * size
    assert stats.live_tokens == sum(live.values())
    assert stats.num_free_blocks + len(live) == stats.num_blocks


def check_idle(scheduler: Scheduler) -> None:
    """Nothing is left when nobody is: no table, every block free."""
    check_scheduler(scheduler)
    assert not scheduler.has_requests()
    stats = scheduler.stats()
    assert (stats.num_waiting, stats.num_running) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks
