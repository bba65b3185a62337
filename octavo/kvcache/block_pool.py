"""The blocks of the KV cache: who is free, in which order they are reused, how often each is held.

Integers and links only. Does not know requests, hashes' meaning or where KV lives in memory.
"""

from collections.abc import Iterator


class KVCacheBlock:
    """One block: a fixed number of KV slots.

    Attributes:
        block_id: index into the KV store.
        ref_cnt: block tables that hold it; 0 = free (its content may still be cached).
        block_hash: chained hash of its tokens and all before them; None until committed.
        parent: the cached block before it in its sequence; None at the start or when not cached.
        num_children: cached blocks whose parent it is.
        last_used_s: the pool's time when its last holder let go.
        prev_free, next_free: links of the free list, None while held.
    """

    __slots__ = (
        "block_hash",
        "block_id",
        "last_used_s",
        "next_free",
        "num_children",
        "parent",
        "prev_free",
        "ref_cnt",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.parent: KVCacheBlock | None = None
        self.num_children = 0
        self.last_used_s = 0.0
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        cached = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, hash={cached})"


class BlockPool:
    """All blocks, and an intrusive doubly linked list of the free ones. Every operation is O(1).

    The list is the order of reuse. A freed block without a hash holds nothing of use and goes to
    the front; a cached one goes to the back, so the front-most cached block is the least recently
    used one.

    Attributes: num_free; now_s: what time it is, told by the owner; nothing here depends on it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [KVCacheBlock(i) for i in range(num_blocks)]
        self.num_free = 0
        self.now_s = 0.0
        # The sentinel closes the ring: no end of the list is a special case.
        self._ring = KVCacheBlock(-1)
        self._ring.prev_free = self._ring.next_free = self._ring
        for block in self.blocks:
            self._link(block, self._ring)

    def allocate(self) -> KVCacheBlock:
        """Take the first free block (ref_cnt 1). The caller drops it from the prefix cache."""
        block = self._ring.next_free
        assert block is not None and block is not self._ring, "allocate from an empty pool"
        self._unlink(block)
        block.ref_cnt = 1
        return block

    def touch(self, block: KVCacheBlock) -> None:
        """One more holder; a free block leaves the free list with its content kept."""
        if block.ref_cnt == 0:
            self._unlink(block)
        block.ref_cnt += 1

    def release(self, block: KVCacheBlock) -> None:
        """One holder less; the last one frees it."""
        assert block.ref_cnt > 0, f"released once too often: {block}"
        block.ref_cnt -= 1
        if block.ref_cnt == 0:
            block.last_used_s = self.now_s
            assert self._ring.next_free is not None
            self._link(block, self._ring.next_free if block.block_hash is None else self._ring)

    def free_blocks(self) -> Iterator[KVCacheBlock]:
        """Free blocks in the order in which they will be reused."""
        block = self._ring.next_free
        while block is not self._ring:
            assert block is not None
            following = block.next_free
            yield block
            block = following

    def _link(self, block: KVCacheBlock, before: KVCacheBlock) -> None:
        prev = before.prev_free
        assert prev is not None
        block.prev_free, block.next_free = prev, before
        prev.next_free = before.prev_free = block
        self.num_free += 1

    def _unlink(self, block: KVCacheBlock) -> None:
        prev, following = block.prev_free, block.next_free
        assert prev is not None and following is not None
        prev.next_free, following.prev_free = following, prev
        block.prev_free = block.next_free = None
        self.num_free -= 1
