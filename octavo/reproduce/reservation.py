"""KV memory given out as before paging: one contiguous run a request, all of it at admission.

The baselines of the `paged` claim. A request's run is reserved for the longest it may get and
rounded up to a power of two by a buddy allocator, as the PagedAttention paper does for its three
Orca variants (Kwon et al., SOSP'23, section 6.1). The worker is told ordinary block tables, whose
ids happen to follow each other: the kernels are the same. Decides nothing about order or budget.
"""

from collections.abc import Callable, Sequence

from octavo.config import CacheSection
from octavo.core.request import Request
from octavo.core.step import BlockCopy
from octavo.errors import ConfigError
from octavo.kvcache.block_pool import KVCacheBlock
from octavo.kvcache.manager import BlockTable, KVCacheManager

# tokens to reserve for a request when it is admitted
Reserve = Callable[[Request], int]


class BuddyAllocator:
    """Runs of 2**order units inside 2**max_order units (Knowlton, 1965).

    A free run is split in halves until it fits; a freed run joins its buddy when that is free, too.
    """

    def __init__(self, num_units: int) -> None:
        if num_units < 1 or num_units & (num_units - 1):
            raise ConfigError(f"num_blocks is {num_units}: a buddy allocator takes a power of two",
                              param="num_blocks")
        self._free: list[set[int]] = [set() for _ in range(num_units.bit_length())]
        self._free[-1].add(0)

    @staticmethod
    def order_of(num_units: int) -> int:
        """Order of the smallest run of at least num_units."""
        return max(num_units - 1, 0).bit_length()

    def has_run(self, order: int) -> bool:
        """Whether a run of that order could be taken now."""
        return any(self._free[order:])

    def take(self, order: int) -> int:
        """First unit of a run: the lowest one of the smallest size that has any."""
        size = next(i for i in range(order, len(self._free)) if self._free[i])
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > order:
            size -= 1
            self._free[size].add(start + (1 << size))
        return start

    def give_back(self, start: int, order: int) -> None:
        """Frees a run that was taken."""
        while order + 1 < len(self._free) and start ^ (1 << order) in self._free[order]:
            self._free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)


class ReservingKVCacheManager(KVCacheManager):
    """A KVCacheManager whose block tables are whole runs, taken at admission and never grown.

    The scheduler asks for blocks and hears "more than there are" until a run is free. Nothing is
    ever preempted: what a request may need, it has. No sharing: prefix caching must be off.
    Raises ConfigError for a num_blocks that is no power of two.
    """

    def __init__(self, config: CacheSection, namespace: bytes, *, reserve: Reserve) -> None:
        assert not config.enable_prefix_caching, "contiguous runs cannot share blocks"
        super().__init__(config, namespace)
        self._reserve = reserve
        self._buddy = BuddyAllocator(config.num_blocks)
        self._runs: dict[str, tuple[int, int]] = {}  # first block, order

    def num_blocks_needed(
        self, request: Request, num_tokens: int, computed_blocks: Sequence[KVCacheBlock] = ()
    ) -> int:
        """The whole run of a request that has none; beyond any pool while no run is free.

        policy.reserved_blocks subtracts what running requests hold beyond their tokens, at most
        the pool: twice the pool is refused whatever runs.
        """
        if request.request_id in self._runs:
            return super().num_blocks_needed(request, num_tokens, computed_blocks)
        order = self._order(request)
        return 1 << order if self._buddy.has_run(order) else 2 * self.num_blocks + 1

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        copies: list[BlockCopy],
        computed_blocks: Sequence[KVCacheBlock] = (),
    ) -> list[int] | None:
        """Reserves the run at the first call; later tokens find their slots in it."""
        if request.request_id not in self._runs:
            order = self._order(request)
            if not self._buddy.has_run(order):
                return None
            start = self._buddy.take(order)
            self._runs[request.request_id] = start, order
            blocks = self._pool.blocks[start : start + (1 << order)]
            for block in blocks:
                self._pool.touch(block)
            self._tables[request.request_id] = BlockTable(blocks)
            return [block.block_id for block in blocks]
        new_block_ids = super().allocate_slots(request, num_new_tokens, copies=copies)
        assert new_block_ids == [], f"{request.request_id} outgrew its reservation"
        return new_block_ids

    def free(self, request: Request) -> None:
        """Gives the whole run back."""
        super().free(request)
        run = self._runs.pop(request.request_id, None)
        if run is not None:
            self._buddy.give_back(*run)

    def _order(self, request: Request) -> int:
        return BuddyAllocator.order_of(-(-self._reserve(request) // self.block_size))


def reserve_max(max_model_len: int) -> Reserve:
    """Orca (Max): the longest sequence that the model takes, whatever is asked."""
    return lambda request: max_model_len


def reserve_pow2(max_model_len: int) -> Reserve:
    """Orca (Pow2): the prompt, and the output at most twice too long (a power of two)."""
    return lambda request: min(
        max_model_len, request.num_prompt_tokens + (1 << (request.max_tokens - 1).bit_length())
    )


def reserve_oracle(max_model_len: int) -> Reserve:
    """Orca (Oracle): the length that the request will really have, known in advance."""
    return lambda request: min(max_model_len, request.num_prompt_tokens + request.max_tokens)
