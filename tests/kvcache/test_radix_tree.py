"""RadixTree: keys, matching, pending blocks, duplicates, eviction."""

import hashlib
import struct
import subprocess
import sys

import pytest

from octavo.kvcache.block_pool import BlockPool, KVCacheBlock
from octavo.kvcache.radix_tree import NullRadixTree, RadixTree

PREFIX = list(range(1, 9))


def _cache(tree: RadixTree, request, pool: BlockPool, num_blocks: int) -> list[KVCacheBlock]:
    """Have the request compute its first blocks."""
    blocks = [pool.allocate() for _ in range(num_blocks)]
    tree.publish(request, blocks, 0, num_blocks)
    assert tree.commit(request, blocks, 0, num_blocks) == []
    tree.end_step()
    return blocks


def test_keys_are_chained_blake2b_128(make) -> None:
    tree, request = RadixTree(4, b"model"), make([*PREFIX, 9])
    _cache(tree, request, BlockPool(2), 2)
    framed = struct.pack("<I", 5) + b"model" + struct.pack("<I", 0)
    expected = hashlib.blake2b(framed, digest_size=16).digest()
    for i in range(2):
        packed = struct.pack("<4I", *PREFIX[4 * i : 4 * i + 4])
        expected = hashlib.blake2b(expected + packed, digest_size=16).digest()
        assert request.block_hashes[i] == expected


def test_keys_are_the_same_in_every_process() -> None:
    code = (
        "from octavo.kvcache.radix_tree import RadixTree;"
        "print(RadixTree(4, b'model').root_hash('salt').hex())"
    )
    for hash_seed in ("1", "2"):
        shown = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.strip() == RadixTree(4, b"model").root_hash("salt").hex()


def test_namespace_and_salt_separate() -> None:
    roots = {
        RadixTree(4, namespace).root_hash(salt)
        for namespace in (b"a", b"ab", b"")
        for salt in (None, "", "b", "ab")
    }
    assert len(roots) == 12


def test_match_finds_the_longest_prefix(make) -> None:
    tree, pool = RadixTree(4, b"m"), BlockPool(8)
    blocks = _cache(tree, make([*PREFIX, 9]), pool, 2)
    assert tree.match(make([*PREFIX, 7]), 0, 2) == blocks
    assert tree.match(make([*PREFIX, 7]), 1, 2) == blocks[1:], "from where the request is"
    assert tree.match(make([*PREFIX[:4], 0, 0, 0, 0, 0]), 0, 2) == blocks[:1]
    assert tree.match(make([0, *PREFIX]), 0, 2) == []
    assert tree.match(make([*PREFIX, 9], cache_salt="x"), 0, 2) == []


def test_pending_blocks_match_until_the_step_ends(make) -> None:
    tree, pool = RadixTree(4, b"m"), BlockPool(8)
    writer, reader = make([*PREFIX, 9]), make([*PREFIX, 8])
    blocks = [pool.allocate()]
    tree.publish(writer, blocks, 0, 1)
    assert tree.match(reader, 0, 2) == blocks
    assert blocks[0].block_hash is None, "a block gets its hash only when committed"
    tree.commit(writer, blocks, 0, 1)
    tree.end_step()
    assert blocks[0].block_hash is not None
    assert tree.match(reader, 0, 2) == blocks


def test_equal_blocks_are_kept_once(make) -> None:
    tree, pool = RadixTree(4, b"m"), BlockPool(8)
    first, second = make([*PREFIX, 9]), make([*PREFIX, 9])
    ours, theirs = [[pool.allocate() for _ in range(2)] for _ in range(2)]
    for request, blocks in ((first, ours), (second, theirs)):
        tree.publish(request, blocks, 0, 2)
    assert tree.match(make([*PREFIX, 1]), 0, 2) == ours, "the first writer is shared"
    assert tree.commit(first, ours, 0, 2) == []
    assert tree.commit(second, theirs, 0, 2) == [(0, ours[0]), (1, ours[1])]
    assert len(tree) == 2 and theirs[0].block_hash is None


def test_only_leaves_are_evicted(make) -> None:
    tree, pool = RadixTree(4, b"m"), BlockPool(8)
    head, tail = _cache(tree, make([*PREFIX, 9]), pool, 2)
    with pytest.raises(AssertionError, match="not a leaf"):
        tree.evict(head)
    tree.evict(tail)
    tree.evict(head)
    assert len(tree) == 0 and tail.parent is None and head.num_children == 0


def test_null_tree_finds_nothing(make) -> None:
    tree, request = NullRadixTree(4, b"m"), make([*PREFIX, 9])
    blocks = _cache(tree, request, BlockPool(2), 2)
    assert tree.match(make([*PREFIX, 9]), 0, 2) == []
    assert blocks[0].block_hash is None and request.block_hashes == []
