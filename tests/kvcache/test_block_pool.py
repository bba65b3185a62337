"""BlockPool: the free list is an exact LRU order and loses nothing."""

import random

import pytest

from octavo.kvcache.block_pool import BlockPool


def _free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_blocks()]


def test_allocate_in_order_and_release() -> None:
    pool = BlockPool(3)
    a, b = pool.allocate(), pool.allocate()
    assert (a.block_id, b.block_id, pool.num_free) == (0, 1, 1)
    assert a.ref_cnt == 1
    pool.release(a)
    assert _free_ids(pool) == [0, 2], "a block without content is reused first"


def test_cached_blocks_are_reused_last_and_in_order_of_release() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate() for _ in range(4)]
    for block in blocks[:3]:
        block.block_hash = bytes([block.block_id])
    for block in (blocks[2], blocks[0], blocks[3], blocks[1]):
        pool.release(block)
    assert _free_ids(pool) == [3, 2, 0, 1]


def test_touch_takes_a_block_out_of_the_middle() -> None:
    pool = BlockPool(3)
    middle = pool.blocks[1]
    pool.touch(middle)
    pool.touch(middle)
    assert middle.ref_cnt == 2 and _free_ids(pool) == [0, 2]
    pool.release(middle)
    assert _free_ids(pool) == [0, 2]
    pool.release(middle)
    assert pool.num_free == 3


def test_misuse_is_caught() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    with pytest.raises(AssertionError, match="empty pool"):
        pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError, match="once too often"):
        pool.release(block)


@pytest.mark.parametrize("seed", range(3))
def test_random_walk_against_a_list(seed: int) -> None:
    rng = random.Random(seed)
    pool = BlockPool(12)
    model = list(range(12))  # ids in order of reuse
    for _ in range(1000):
        kind = rng.randrange(3)
        if kind == 0 and model:
            assert pool.allocate().block_id == model.pop(0)
        elif kind == 1:
            block = rng.choice(pool.blocks)
            if block.ref_cnt == 0:
                model.remove(block.block_id)
            pool.touch(block)
        else:
            block = rng.choice(pool.blocks)
            if block.ref_cnt:
                block.block_hash = rng.choice([None, b"h"])
                pool.release(block)
                if block.ref_cnt == 0:
                    model.insert(0 if block.block_hash is None else len(model), block.block_id)
        assert _free_ids(pool) == model
        assert pool.num_free == len(model)
