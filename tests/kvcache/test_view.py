"""What is shown of the KV bookkeeping; tests/simulation/test_live_walk.py compares it with the
whole truth on random walks."""

from octavo.config import CacheSection
from octavo.core.request import Request
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.view import TreeEdge
from tests.kvcache.conftest import RequestMaker


def _run(kv: KVCacheManager, request: Request, at_s: float) -> None:
    """The whole prompt in one step at that time."""
    kv.begin_step(at_s)
    found = kv.get_computed_blocks(request)
    num_tokens = request.num_tokens - len(found) * kv.block_size
    assert kv.allocate_slots(request, num_tokens, copies=[], computed_blocks=found) is not None
    request.num_computed_tokens += num_tokens
    kv.commit(request)
    kv.end_step()


def test_edges_and_map_of_two_branches(make: RequestMaker) -> None:
    kv = KVCacheManager(CacheSection(block_size=4, num_blocks=10), b"model")
    stem = list(range(8))
    one, two = make([*stem, *range(10, 18)]), make([*stem, *range(20, 25)])
    _run(kv, one, 1.0)
    assert kv.view_tree(300) == ([TreeEdge(0, None, 4, 1, None)], 0)
    _run(kv, two, 2.0)
    assert kv.view_tree(300) == ([
        TreeEdge(0, None, 2, 2, None), TreeEdge(2, 0, 2, 1, None), TreeEdge(4, 0, 1, 1, None)], 0)
    assert kv.view_blocks(4096) == ("221111....", 1)
    assert kv.view_table(two, 99) == [0, 1, 4, 5] and kv.view_table(two, 2) == [0, 1]
    kv.begin_step(7.0)
    kv.free(one)
    edges, _ = kv.view_tree(300)
    assert edges[1] == TreeEdge(2, 0, 2, 0, 7.0)
    assert kv.view_blocks(4096) == ("11cc11....", 1)
    kv.begin_step(9.0)
    kv.free(two)
    edges, left_out = kv.view_tree(2)  # the newer branch, and what it continues
    assert edges == [TreeEdge(0, None, 2, 0, 9.0), TreeEdge(4, 0, 1, 0, 9.0)] and left_out == 1
    assert kv.view_blocks(4096) == ("ccccc.....", 1)
    assert kv.view_blocks(4) == ("cc..", 3)
    assert kv.view_table(two, 99) == []


def test_without_a_prefix_cache_there_is_no_tree(make: RequestMaker) -> None:
    config = CacheSection(block_size=4, num_blocks=4, enable_prefix_caching=False)
    kv = KVCacheManager(config, b"model")
    request = make(list(range(9)))
    _run(kv, request, 1.0)
    assert kv.view_tree(300) == ([], 0) and kv.view_blocks(4096) == ("111.", 1)
    kv.free(request)
    assert kv.view_blocks(4096) == ("....", 1)
