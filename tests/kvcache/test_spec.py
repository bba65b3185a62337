"""KVCacheSpec: sizes worked out by hand."""

import pytest

from octavo.errors import ConfigError
from octavo.kvcache.spec import KVCacheSpec


def _spec(dtype: str, **fields: int) -> KVCacheSpec:
    sizes = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "block_size": 16} | fields
    return KVCacheSpec(dtype=dtype, **sizes)  # type: ignore[arg-type]


def test_bytes_per_block() -> None:
    assert _spec("f32").bytes_per_block == 30 * 3 * 2 * 16 * 64 * 4
    assert _spec("bf16").bytes_per_block == 30 * 3 * 2 * 16 * 64 * 2
    assert _spec("int8").bytes_per_block == 30 * 3 * 16 * 2 * (64 + 4)


def test_parts_of_a_head_tile() -> None:
    spec = _spec("int8")
    assert (spec.v_offset, spec.k_scale_offset, spec.v_scale_offset) == (1024, 2048, 2112)
    assert spec.head_tile_bytes == 2176
    assert spec.bytes_per_layer_block == 3 * 2176


def test_a_tile_is_padded_to_cache_lines() -> None:
    spec = _spec("bf16", head_dim=5, block_size=3, num_kv_heads=1, num_layers=1)
    assert spec.head_tile_bytes == 64  # 60 bytes used
    assert _spec("int8", head_dim=5, block_size=3, num_kv_heads=1).head_tile_bytes == 64


def test_num_blocks_for() -> None:
    spec = _spec("bf16")
    assert spec.num_blocks_for(10 * spec.bytes_per_block + 1) == 10
    with pytest.raises(ConfigError, match=f"takes {spec.bytes_per_block}"):
        spec.num_blocks_for(spec.bytes_per_block - 1)


def test_bad_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="head_dim is 0"):
        _spec("bf16", head_dim=0)
    with pytest.raises(ConfigError, match="kv_cache_dtype is 'fp8'"):
        _spec("fp8")
