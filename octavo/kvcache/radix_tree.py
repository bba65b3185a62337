"""The prefix cache: a block-granular radix tree whose nodes are the KV blocks themselves.

An edge is one full block of tokens. A node's key is the chained hash of its tokens and of every
token before them, so finding the longest cached prefix is one dictionary look-up a block, and the
key is the same in every process. Does not hold blocks: a cached block nobody holds is free and may
be evicted. Knows nothing about block tables or memory.

What holds, always (checked by octavo.testing.invariants):
- Whoever holds a node holds its whole path: a table reaches a node only by matching the path or by
  committing it, and a commit puts the existing node in place of an equal block (see `commit`).
- So a parent is held at least as long as any of its children, and becomes free after them (tables
  are freed tail first): in the free list every child stands before its parent. Taking the first
  block of that list therefore is LRU eviction, is O(1), and never leaves an orphan.
"""

import hashlib
import struct
from collections.abc import Sequence

from octavo.core.request import Request
from octavo.kvcache.block_pool import KVCacheBlock

HASH_BYTES = 16  # blake2b-128: collisions are not a concern even for hostile prompts


class RadixTree:
    """Chained hash to block, plus the blocks that the step being scheduled will fill.

    A block gets its hash only when committed, after the step that filled it. Until then it is
    *pending*: requests scheduled in the same step may already share it, because all KV writes of a
    layer precede its attention reads.
    """

    def __init__(self, block_size: int, namespace: bytes) -> None:
        self._block_size = block_size
        self._namespace = namespace
        self._pack = struct.Struct(f"<{block_size}I").pack
        self._nodes: dict[bytes, KVCacheBlock] = {}
        self._pending: dict[bytes, KVCacheBlock] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, request: Request, first: int, last: int) -> list[KVCacheBlock]:
        """Longest run of cached or pending blocks for the request's blocks first .. last - 1."""
        found: list[KVCacheBlock] = []
        nodes, pending = self._nodes, self._pending
        if not nodes and not pending:
            return found
        hashes = request.block_hashes
        for i in range(first, last):
            if i >= len(hashes):
                self._extend_hashes(request, i + 1)
            block = nodes.get(hashes[i]) or pending.get(hashes[i])
            if block is None:
                break
            found.append(block)
        return found

    def publish(
        self, request: Request, blocks: Sequence[KVCacheBlock], first: int, last: int
    ) -> None:
        """Blocks first .. last - 1 of the request will be full when this step is over.

        Of several writers of one hash the first is the one to share; commits run in the same order.
        """
        self._extend_hashes(request, last)
        for i in range(first, last):
            block_hash = request.block_hashes[i]
            if block_hash not in self._nodes:
                self._pending.setdefault(block_hash, blocks[i])

    def commit(
        self, request: Request, blocks: Sequence[KVCacheBlock], first: int, last: int
    ) -> list[tuple[int, KVCacheBlock]]:
        """Blocks first .. last - 1 (published before) are computed: give them their hashes.

        Equal content is kept once. Returns (index, node) for every block whose hash the tree has
        already: the caller puts that node into the table and releases its own block.
        """
        duplicates: list[tuple[int, KVCacheBlock]] = []
        parent = blocks[first - 1] if first else None
        for i in range(first, last):
            node = self._insert(request.block_hashes[i], blocks[i], parent)
            if node is not blocks[i]:
                duplicates.append((i, node))
            parent = node
        return duplicates

    def end_step(self) -> None:
        """The step is over: what was pending is committed."""
        self._pending.clear()

    def evict(self, block: KVCacheBlock) -> None:
        """Forget a leaf, because its block is about to be reused."""
        assert block.block_hash is not None and block.num_children == 0, f"not a leaf: {block}"
        del self._nodes[block.block_hash]
        if block.parent is not None:
            block.parent.num_children -= 1
        block.block_hash = block.parent = None

    def nodes(self) -> dict[bytes, KVCacheBlock]:
        """The nodes by hash, for checks; not to be changed."""
        return self._nodes

    def root_hash(self, cache_salt: str | None) -> bytes:
        """Parent of a sequence's first block. Fields are length-prefixed: no two salts collide."""
        salt = b"" if cache_salt is None else b"\x01" + cache_salt.encode("utf-8", "surrogatepass")
        framed = b"".join(struct.pack("<I", len(f)) + f for f in (self._namespace, salt))
        return hashlib.blake2b(framed, digest_size=HASH_BYTES).digest()

    def _insert(
        self, block_hash: bytes, block: KVCacheBlock, parent: KVCacheBlock | None
    ) -> KVCacheBlock:
        node = self._nodes.get(block_hash)
        if node is not None:
            return node
        assert block.block_hash is None, f"committed twice: {block}"
        block.block_hash = block_hash
        block.parent = parent
        if parent is not None:
            assert parent.block_hash is not None, f"child of an uncommitted block: {block}"
            parent.num_children += 1
        self._nodes[block_hash] = block
        return block

    def _extend_hashes(self, request: Request, num_blocks: int) -> None:
        """Make sure that the request's first num_blocks block hashes are known."""
        hashes = request.block_hashes
        if len(hashes) >= num_blocks:
            return
        parent = hashes[-1] if hashes else self.root_hash(request.params.cache_salt)
        size, tokens = self._block_size, request.token_ids
        for start in range(len(hashes) * size, num_blocks * size, size):
            packed = self._pack(*tokens[start : start + size])
            parent = hashlib.blake2b(parent + packed, digest_size=HASH_BYTES).digest()
            hashes.append(parent)


class NullRadixTree(RadixTree):
    """Prefix caching off: nothing is ever found, no block gets a hash."""

    def match(self, request: Request, first: int, last: int) -> list[KVCacheBlock]:
        return []

    def publish(
        self, request: Request, blocks: Sequence[KVCacheBlock], first: int, last: int
    ) -> None:
        pass

    def commit(
        self, request: Request, blocks: Sequence[KVCacheBlock], first: int, last: int
    ) -> list[tuple[int, KVCacheBlock]]:
        return []
