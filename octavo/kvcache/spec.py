"""How many bytes a KV block takes and where its parts lie. Sizes only: no memory is held here.

A block of one layer is a row of head tiles, one a KV head, each padded to whole cache lines:

    [ K tile: head_dim x block_size | V: block_size x head_dim | K scales | V scales | padding ]

K is transposed, so that it has the weight tile's shape (tokens in lanes); int8 V goes in quads of 4
tokens, in the same number of bytes. Scales exist for int8 only: one float32 a token and head, for K
and for V.
"""

import dataclasses

from octavo.config import KVCacheDtype
from octavo.errors import ConfigError

CACHE_LINE_BYTES = 64
SCALE_BYTES = 4  # one float32
_ITEM_BYTES: dict[KVCacheDtype, int] = {"f32": 4, "bf16": 2, "int8": 1}


@dataclasses.dataclass(slots=True, frozen=True)
class KVCacheSpec:
    """Geometry of the KV cache of one model. Every property is in bytes."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVCacheDtype

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, field) < 1:
                raise ConfigError(
                    f"{field} is {getattr(self, field)}: give at least 1", param=field
                )
        if self.dtype not in _ITEM_BYTES:
            raise ConfigError(
                f"kv_cache_dtype is {self.dtype!r}: give one of {', '.join(_ITEM_BYTES)}",
                param="kv_cache_dtype",
            )

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]

    @property
    def v_offset(self) -> int:
        """Start of V inside a head tile (K starts at 0)."""
        return self.head_dim * self.block_size * self.item_bytes

    @property
    def k_scale_offset(self) -> int:
        return 2 * self.v_offset

    @property
    def v_scale_offset(self) -> int:
        return self.k_scale_offset + self._scale_bytes

    @property
    def head_tile_bytes(self) -> int:
        used = self.v_scale_offset + self._scale_bytes
        return -(-used // CACHE_LINE_BYTES) * CACHE_LINE_BYTES

    @property
    def bytes_per_layer_block(self) -> int:
        return self.num_kv_heads * self.head_tile_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.num_layers * self.bytes_per_layer_block

    def num_blocks_for(self, size_bytes: int) -> int:
        """Blocks that fit into size_bytes. Raises ConfigError when not even one does."""
        num_blocks = size_bytes // self.bytes_per_block
        if num_blocks < 1:
            raise ConfigError(
                f"the KV cache size is {size_bytes} bytes, but one block of {self.block_size} "
                f"tokens takes {self.bytes_per_block}: give more",
                param="kv_cache_memory_bytes",
            )
        return num_blocks

    @property
    def _scale_bytes(self) -> int:
        return self.block_size * SCALE_BYTES if self.dtype == "int8" else 0
