"""A prefix cache whose entries are used whole or not at all: the baseline of the `radix` claim.

An entry is a whole prompt, or a whole prompt with its answer. A prompt hits where it is an entry or
begins with one: a repeated prompt does, and so does the next turn of the same conversation. Two
prompts that share only their beginning (a system prompt, examples) share nothing here.
Same blocks, same hashes and same eviction as the radix tree; it only finds less.
"""

from octavo.config import CacheSection
from octavo.core.request import Request
from octavo.kvcache.block_pool import KVCacheBlock
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.radix_tree import RadixTree


class ExactMatchTree(RadixTree):
    """Matches end where a remembered entry ends."""

    def __init__(self, block_size: int, namespace: bytes) -> None:
        super().__init__(block_size, namespace)
        # hash of the last block before an entry's tail, to the tails (1 .. block_size tokens)
        self._tails: dict[bytes, set[tuple[int, ...]]] = {}

    def remember(self, request: Request, num_tokens: int) -> None:
        """The request's first num_tokens tokens are an entry; one within the first block is not
        kept, since it has no whole block to share."""
        start = self._tail_start(num_tokens)
        if start == 0:
            return
        self._extend_hashes(request, start // self._block_size)
        block_hash = request.block_hashes[start // self._block_size - 1]
        tail = tuple(request.token_ids[start:num_tokens])
        self._tails.setdefault(block_hash, set()).add(tail)

    def match(self, request: Request, first: int, last: int) -> list[KVCacheBlock]:
        """As the radix tree's, cut to the longest whole entry."""
        found = super().match(request, first, last)
        size = self._block_size
        for count in range(len(found), 0, -1):
            end = (first + count) * size
            tails = self._tails.get(request.block_hashes[first + count - 1], ())
            longest = max((len(tail) for tail in tails if tuple(
                request.token_ids[end : end + len(tail)]) == tail), default=0)
            if longest:
                return found[: count + (longest == size)]
        return []

    def evict(self, block: KVCacheBlock) -> None:
        """Forgets the entries behind the block, too."""
        assert block.block_hash is not None
        self._tails.pop(block.block_hash, None)
        super().evict(block)

    def _tail_start(self, num_tokens: int) -> int:
        # A prompt's last token is always computed: an entry that fills its last block must be found
        # by a prompt that ends there, too, so that block counts as tail.
        return (num_tokens - 1) // self._block_size * self._block_size


class ExactMatchKVCacheManager(KVCacheManager):
    """Remembers each prompt when it is computed, and each conversation when its request ends."""

    def __init__(self, config: CacheSection, namespace: bytes) -> None:
        assert config.enable_prefix_caching, "an exact-match cache is a prefix cache"
        super().__init__(config, namespace)
        self._entries = ExactMatchTree(config.block_size, namespace)
        self._tree = self._entries

    def commit(self, request: Request) -> None:
        super().commit(request)
        if request.num_computed_tokens == request.num_prompt_tokens:
            self._entries.remember(request, request.num_prompt_tokens)

    def free(self, request: Request) -> None:
        if request.num_computed_tokens > request.num_prompt_tokens:
            self._entries.remember(request, request.num_computed_tokens)
        super().free(request)
