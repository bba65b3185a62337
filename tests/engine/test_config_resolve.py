"""Arguments + model + machine -> config: each choice, its reason, and each refusal."""

import dataclasses

import pytest

from octavo.config_resolve import GIB, EngineArgs, Resolution, resolve_config
from octavo.errors import ConfigError
from octavo.machine import MachineFacts, machine_facts
from octavo.testing.byte_tokenizer import byte_tokenizer
from tests.engine.parts import parts_of

MODEL = dataclasses.replace(parts_of(byte_tokenizer()).model, num_layers=30, num_kv_heads=3,
                            head_dim=64, max_position_embeddings=8192)
MACHINE = MachineFacts(num_affinity_cpus=8, num_cores=4, cpu_quota=None,
                       available_bytes=64 * GIB, has_native=True)
# 30 layers x 3 heads x 64 x (K + V) x 2 bytes x 16 tokens
BLOCK_BYTES = 30 * 3 * 64 * 2 * 2 * 16


def resolve(machine: MachineFacts = MACHINE, **args: object) -> Resolution:
    return resolve_config(EngineArgs(model="m", **args),  # type: ignore[arg-type]
                          path="/m.gguf", model=MODEL, machine=machine)


def test_kv_size_is_the_smallest_of_three() -> None:
    def bytes_of(r: Resolution) -> int:
        return r.config.cache.num_blocks * BLOCK_BYTES

    most = resolve()
    assert 4 * GIB - BLOCK_BYTES < bytes_of(most) <= 4 * GIB
    assert any("4 GiB" in line for line in most.lines)
    little = resolve(dataclasses.replace(MACHINE, available_bytes=2 * GIB))
    assert GIB // 2 - BLOCK_BYTES < bytes_of(little) <= GIB // 2
    assert any("25 %" in line for line in little.lines)
    usable = resolve(max_num_seqs=2, max_model_len=1000)
    assert usable.config.cache.num_blocks == 2 * 63
    assert any("all that can be used" in line for line in usable.lines)


def test_kv_size_as_asked() -> None:
    assert resolve(kv_cache_memory_bytes=10 * BLOCK_BYTES, max_model_len=160
                   ).config.cache.num_blocks == 10
    assert resolve(num_blocks=7).config.cache.num_blocks == 7


def test_context_is_capped_by_the_cache_unless_asked_for() -> None:
    capped = resolve(num_blocks=10)
    assert capped.config.model.max_model_len == 160
    assert capped.config.scheduler.max_model_len == 160
    assert any("160" in line and "8192" in line for line in capped.lines)
    asked = resolve(num_blocks=10, max_model_len=2048)
    assert asked.config.model.max_model_len == 2048
    assert any("2048" in line and "160" in line for line in asked.lines)


@pytest.mark.parametrize("facts, threads", [
    ({}, 4), ({"num_affinity_cpus": 2}, 2), ({"cpu_quota": 2.9}, 2), ({"cpu_quota": 0.5}, 1),
    ({"num_cores": 1}, 1),
])
def test_threads(facts: dict[str, float], threads: int) -> None:
    machine = dataclasses.replace(MACHINE, **facts)  # type: ignore[arg-type]
    assert resolve(machine).config.model.num_threads == threads
    assert resolve(num_threads=3).config.model.num_threads == 3


def test_backend() -> None:
    without = dataclasses.replace(MACHINE, has_native=False)
    assert resolve().config.model.backend == "cpu"
    fallback = resolve(without)
    assert fallback.config.model.backend == "reference"
    assert any("native module is not built" in line for line in fallback.lines)
    with pytest.raises(ConfigError, match="compiler"):
        resolve(without, backend="cpu")


def test_budget_without_chunked_prefill() -> None:
    assert resolve().config.scheduler.max_num_batched_tokens == 512
    whole = resolve(enable_chunked_prefill=False)
    assert whole.config.scheduler.max_num_batched_tokens == 8192
    with pytest.raises(ConfigError, match="one step"):
        resolve(enable_chunked_prefill=False, max_num_batched_tokens=100)


@pytest.mark.parametrize("dtype, expected", [("auto", "bf16"), ("bfloat16", "bf16"),
                                             ("float32", "f32"), ("int8", "int8")])
def test_kv_dtype(dtype: str, expected: str) -> None:
    assert resolve(kv_cache_dtype=dtype).config.cache.dtype == expected


@pytest.mark.parametrize("args", [
    {"max_num_seqs": 0}, {"max_model_len": -1}, {"block_size": 8}, {"block_size": 24},
    {"kv_cache_dtype": "fp4"}, {"backend": "cuda"}, {"scheduling_policy": "random"},
    {"num_threads": 1000}, {"seed": -1}, {"kv_cache_memory_bytes": 100},
    {"num_blocks": 4, "kv_cache_memory_bytes": 1 << 30}, {"max_num_batched_tokens": True},
    {"long_prefill_token_threshold": -1}, {"long_prefill_token_threshold": 1.5},
    {"block_size": "16"}, {"seed": "x"}, {"num_blocks": 10**9},
    {"kv_cache_memory_bytes": 65 * GIB},
])
def test_bad_arguments_are_named(args: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**args)
    assert caught.value.param in args and "\n" not in caught.value.message


def test_this_machine_is_measured() -> None:
    facts = machine_facts(has_native=False)
    assert 1 <= facts.num_cores <= facts.num_affinity_cpus
    assert facts.available_bytes > 1 << 20
    assert facts.cpu_quota is None or facts.cpu_quota > 0
