"""The KV bookkeeping as people see it: a map of all blocks, and the radix tree by its edges.

Read-only and pure. Linear in the pool: for snapshots, never for a step.
"""

import dataclasses
import heapq
import math
from collections.abc import Collection, Sequence

from octavo.kvcache.block_pool import KVCacheBlock

# A block's code: 0 free without content, 1 cached and held by nobody, 1 + ref_cnt when held.
# In this order the highest code of a run of blocks is what its character shows.
_MAX_SHOWN = 9
_CHARS = bytes(b".c123456789+"[min(code, 2 + _MAX_SHOWN)] for code in range(256))


@dataclasses.dataclass(slots=True, frozen=True)
class TreeEdge:
    """A run of cached blocks of which each but the last has one child.

    edge_id: id of its first block. parent_id: the edge that it continues, None at a root.
    ref_cnt: the highest, which is the first block's: who holds a node holds its path.
    last_used_s: when the last holder let go; None while there is one.
    """

    edge_id: int
    parent_id: int | None
    num_blocks: int
    ref_cnt: int
    last_used_s: float | None


def block_map(blocks: Sequence[KVCacheBlock], max_chars: int) -> tuple[str, int]:
    """(one character for each `per_char` blocks, the highest of them; per_char).

    "." free without content, "c" cached and held by nobody, "1" .. "9" the reference count, "+"
    more than 9.
    """
    limit = 1 + _MAX_SHOWN
    codes = bytes([
        (1 + block.ref_cnt if block.ref_cnt < limit else 1 + limit) if block.ref_cnt
        else block.block_hash is not None
        for block in blocks
    ])
    per_char = max(1, -(-len(codes) // max_chars))
    if per_char > 1:
        codes += bytes(-len(codes) % per_char)
        codes = bytes(map(max, *(codes[i::per_char] for i in range(per_char))))
    return codes.translate(_CHARS).decode("ascii"), per_char


def tree_edges(nodes: Collection[KVCacheBlock], limit: int) -> tuple[list[TreeEdge], int]:
    """(edges, parents before children; how many were left out).

    nodes: the tree's, parents before children. At most `limit` edges, held ones and those used
    last: never one without its parent, which is held, and let go, at least as long.
    """
    runs: Sequence[tuple[KVCacheBlock, KVCacheBlock, int]] = [
        _run(block) for block in nodes if block.num_children != 1
    ]
    num_edges = len(runs)
    if num_edges > limit:
        runs = heapq.nlargest(limit, runs, key=_recency)  # of equals the earlier ones
    edge_ids: dict[int, int] = {}  # of the edge that ends with the block
    found: list[TreeEdge] = []
    for first, end, num_blocks in runs:
        edge_ids[end.block_id] = first.block_id
        found.append(TreeEdge(
            edge_id=first.block_id,
            parent_id=None if first.parent is None else edge_ids[first.parent.block_id],
            num_blocks=num_blocks,
            ref_cnt=first.ref_cnt,
            last_used_s=None if first.ref_cnt else first.last_used_s,
        ))
    return found, num_edges - len(found)


def _run(end: KVCacheBlock) -> tuple[KVCacheBlock, KVCacheBlock, int]:
    """(first block, last block, number of blocks) of the edge that ends with a block."""
    first, num_blocks = end, 1
    while (parent := first.parent) is not None and parent.num_children == 1:
        first, num_blocks = parent, num_blocks + 1
    return first, end, num_blocks


def _recency(run: tuple[KVCacheBlock, KVCacheBlock, int]) -> float:
    """Of the first block: who holds a part of an edge holds that one."""
    return math.inf if run[0].ref_cnt else run[0].last_used_s
