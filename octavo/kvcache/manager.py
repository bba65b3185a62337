"""KVCacheManager: which blocks every request holds, what it may share, what it must copy.

Block ids and token counts only: where KV lives and how it is moved is the worker's. Does not
decide who runs; the scheduler asks, and acts on a refusal.

Two rules make sharing safe:
- A block is written only by its one holder and only before it has a hash. Any other write goes to
  a fresh block, which takes the place of the old one (copy on write).
- A block is copied only up to the slot about to be written, and those slots were computed in an
  earlier step: copies run before the step's KV writes.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from octavo.config import CacheSection
from octavo.core.request import Request
from octavo.core.step import BlockCopy
from octavo.errors import ConfigError
from octavo.kvcache.block_pool import BlockPool, KVCacheBlock
from octavo.kvcache.radix_tree import NullRadixTree, RadixTree
from octavo.kvcache.view import TreeEdge, block_map, tree_edges


@dataclasses.dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one request, in token order.

    num_committed: leading blocks that are full, computed and (with prefix caching) nodes.
    replaced: index to block id, for changes the worker has not been told yet.
    """

    blocks: list[KVCacheBlock] = dataclasses.field(default_factory=list)
    num_committed: int = 0
    replaced: dict[int, int] = dataclasses.field(default_factory=dict)


class KVCacheManager:
    """Block tables over one pool and one prefix cache. No operation scans the pool but a reset.

    namespace: what makes KV of equal tokens equal: model weights, adapters. The KV dtype is added
    here, the request's cache_salt by the tree. Raises ConfigError for impossible sizes.
    """

    def __init__(self, config: CacheSection, namespace: bytes) -> None:
        for field in ("block_size", "num_blocks"):
            if getattr(config, field) < 1:
                raise ConfigError(
                    f"{field} is {getattr(config, field)}: give at least 1", param=field
                )
        self.block_size = config.block_size
        self.num_blocks = config.num_blocks
        self.enable_prefix_caching = config.enable_prefix_caching
        self.num_copies_on_write = 0  # copies of slots; a fresh block with nothing to copy is none
        self._pool = BlockPool(config.num_blocks)
        tree = RadixTree if config.enable_prefix_caching else NullRadixTree
        self._tree = tree(config.block_size, namespace + b"|kv_dtype=" + config.dtype.encode())
        self._tables: dict[str, BlockTable] = {}

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        return len(self._tree)

    def begin_step(self, now_s: float) -> None:
        """A step is scheduled at this time. For views only: no decision depends on it."""
        self._pool.now_s = now_s

    def num_blocks_held(self, request: Request) -> int:
        """Length of the request's block table; 0 if it has none."""
        table = self._tables.get(request.request_id)
        return 0 if table is None else len(table.blocks)

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """Shareable blocks that continue what the request has computed; nothing is taken yet.

        At least one known token is left to compute, since the next token needs its logits, and the
        tokens whose logits score a known one. The blocks are cached ones, or ones that other
        requests fill in the step being scheduled.
        """
        size = self.block_size
        if request.num_computed_tokens % size or not request.reads_prefix_cache:
            return []
        return self._tree.match(
            request, request.num_computed_tokens // size,
            (request.num_tokens - 1 - request.num_unscored_tokens) // size,
        )

    def num_blocks_needed(
        self, request: Request, num_tokens: int, computed_blocks: Sequence[KVCacheBlock] = ()
    ) -> int:
        """Free blocks it takes to hold the request's first num_tokens tokens.

        Counts the computed_blocks that are free now, since sharing takes them from the free list,
        and the copy on write that the next write would need.
        """
        needed = -(-num_tokens // self.block_size) - len(computed_blocks)
        for block in computed_blocks:
            if block.ref_cnt == 0:
                needed += 1
        table = self._tables.get(request.request_id)
        if table is not None:
            needed -= len(table.blocks)
            if not computed_blocks and self._must_copy(request, table):
                needed += 1
        return needed

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        copies: list[BlockCopy],
        computed_blocks: Sequence[KVCacheBlock] = (),
    ) -> list[int] | None:
        """Make room for the request's next num_new_tokens, after sharing computed_blocks.

        Returns the block ids appended to its table, or None (and nothing changes) when the free
        blocks do not suffice. On success num_computed_tokens has moved over computed_blocks, the
        copies that must precede the step are appended to `copies`, and the blocks that these
        tokens fill are offered to the requests scheduled next: so the tokens must run in this step.
        """
        size = self.block_size
        num_tokens = (
            request.num_computed_tokens + len(computed_blocks) * size + num_new_tokens
        )
        table = self._tables.get(request.request_id)
        if (
            table is not None
            and not computed_blocks
            and num_tokens <= len(table.blocks) * size
            and not self._must_copy(request, table)
        ):
            if num_tokens % size == 0:
                self._publish(request, table, num_tokens)
            return []  # the common decode step: the last block has room
        if self.num_blocks_needed(request, num_tokens, computed_blocks) > self._pool.num_free:
            return None
        if table is None:
            table = self._tables[request.request_id] = BlockTable()
        first_new = len(table.blocks)
        for block in computed_blocks:
            self._pool.touch(block)
            table.blocks.append(block)
        if computed_blocks:
            request.num_computed_tokens += len(computed_blocks) * size
            table.num_committed += len(computed_blocks)
        elif self._must_copy(request, table):
            self._copy_on_write(request, table, copies)
        while len(table.blocks) * size < num_tokens:
            table.blocks.append(self._take_block())
        self._publish(request, table, num_tokens)
        return [block.block_id for block in table.blocks[first_new:]]

    def commit(self, request: Request) -> None:
        """The step is over and num_computed_tokens is up to date: cache the blocks now full.

        Call in the order in which the step scheduled its requests, then end_step().
        """
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= table.num_committed:
            return
        blocks = table.blocks
        for i, node in self._tree.commit(request, blocks, table.num_committed, num_full):
            assert blocks[i].ref_cnt == 1, f"an uncommitted block is shared: {blocks[i]}"
            self._pool.touch(node)
            self._pool.release(blocks[i])
            blocks[i] = node
            table.replaced[i] = node.block_id
        table.num_committed = num_full

    def end_step(self) -> None:
        """Every request of the step has committed."""
        self._tree.end_step()

    def fork(self, parent: Request, child: Request) -> None:
        """Give the child, which has the parent's prompt, all its blocks (the last may be partial).

        Everything but the last prompt token counts as computed: the child computes that one for
        the logits of its first token, which copies the last block. Call between steps, with the
        parent's prompt computed and nothing allocated to the child.
        """
        assert child.request_id not in self._tables, f"{child.request_id} has blocks already"
        num_computed = child.num_prompt_tokens - 1
        assert parent.num_computed_tokens > num_computed, "fork of an unfinished prompt"
        parent_table = self._tables[parent.request_id]
        blocks = parent_table.blocks[: num_computed // self.block_size + 1]
        for block in blocks:
            self._pool.touch(block)
        num_full = num_computed // self.block_size
        self._tables[child.request_id] = BlockTable(blocks=blocks, num_committed=num_full)
        child.block_hashes = parent.block_hashes[: child.num_prompt_tokens // self.block_size]
        child.num_computed_tokens = num_computed

    def free(self, request: Request) -> None:
        """Let go of everything the request holds, tail first, so that heads stay cached longest."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            for block in reversed(table.blocks):
                self._pool.release(block)

    def block_ids(self, request: Request) -> list[int]:
        """The whole block table, for a worker that does not know the request."""
        table = self._tables[request.request_id]
        table.replaced.clear()
        return [block.block_id for block in table.blocks]

    def take_replaced(self, request: Request) -> tuple[tuple[int, int], ...]:
        """(index, new block id) of the entries that changed since the worker was last told."""
        table = self._tables[request.request_id]
        if not table.replaced:
            return ()
        replaced = tuple(table.replaced.items())
        table.replaced.clear()
        return replaced

    def usage(self, num_kv_tokens: Iterable[tuple[Request, int]]) -> tuple[int, int]:
        """(live tokens, allocated slots) of all block tables, shared blocks counted once.

        num_kv_tokens: every request that holds blocks, with its tokens whose KV is in them. Exact
        between steps: then only a table's last block has unused slots, and if that is shared, the
        fullest holder counts.
        """
        size = self.block_size
        unused: dict[int, int] = {}
        for request, num_tokens in num_kv_tokens:
            blocks = self._tables[request.request_id].blocks
            block_id = blocks[-1].block_id
            num_unused = len(blocks) * size - num_tokens
            unused[block_id] = min(unused.get(block_id, num_unused), num_unused)
        allocated = (self.num_blocks - self._pool.num_free) * size
        return allocated - sum(unused.values()), allocated

    def reset_prefix_cache(self) -> int:
        """Drop every cached block that no request holds; returns how many."""
        cached = [block for block in self._pool.free_blocks() if block.block_hash is not None]
        for block in cached:  # free-list order: children before parents
            self._tree.evict(block)
        return len(cached)

    # ---- views, for those who watch

    def view_table(self, request: Request, limit: int) -> list[int]:
        """The first `limit` ids of the request's block table; none if it has none."""
        table = self._tables.get(request.request_id)
        return [] if table is None else [block.block_id for block in table.blocks[:limit]]

    def view_blocks(self, max_chars: int) -> tuple[str, int]:
        """All blocks as characters, and how many blocks one stands for (view.py)."""
        return block_map(self._pool.blocks, max_chars)

    def view_tree(self, limit: int) -> tuple[list[TreeEdge], int]:
        """At most `limit` edges of the radix tree, and how many were left out (view.py)."""
        return tree_edges(self._tree.nodes().values(), limit)

    def _must_copy(self, request: Request, table: BlockTable) -> bool:
        """Whether the next write would hit a block that is shared or already cached."""
        index = request.num_computed_tokens // self.block_size
        if index >= len(table.blocks):
            return False
        block = table.blocks[index]
        return block.ref_cnt > 1 or block.block_hash is not None

    def _copy_on_write(
        self, request: Request, table: BlockTable, copies: list[BlockCopy]
    ) -> None:
        index, num_slots = divmod(request.num_computed_tokens, self.block_size)
        old, new = table.blocks[index], self._take_block()
        if num_slots:
            copies.append(BlockCopy(old.block_id, new.block_id, num_slots))
            self.num_copies_on_write += 1
        table.blocks[index] = new
        table.replaced[index] = new.block_id
        # `old` may be reused in this very step: copies run first and in order, so it is intact.
        self._pool.release(old)

    def _publish(self, request: Request, table: BlockTable, num_tokens: int) -> None:
        num_full = num_tokens // self.block_size
        if num_full > table.num_committed:
            self._tree.publish(request, table.blocks, table.num_committed, num_full)

    def _take_block(self) -> KVCacheBlock:
        block = self._pool.allocate()
        if block.block_hash is not None:
            self._tree.evict(block)
        return block
