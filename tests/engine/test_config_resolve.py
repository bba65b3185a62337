"""Arguments + model + machine -> config: each choice, its reason, and each refusal."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
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
# 30 layers x 3 heads x (K + V) x (64 x 1 byte + a scale of 4) x 16 tokens
BLOCK_BYTES = 30 * 3 * 2 * (64 + 4) * 16


def resolve(machine: MachineFacts = MACHINE, **args: object) -> Resolution:
    return resolve_config(EngineArgs(model="m", **args),  # type: ignore[arg-type]
                          path="/m.gguf", model=MODEL, machine=machine)


def test_kv_size_is_the_smallest_of_three() -> None:
    def bytes_of(r: Resolution) -> int:
        return r.config.cache.num_blocks * BLOCK_BYTES

    most = resolve()
    assert 4 * GIB - BLOCK_BYTES < bytes_of(most) <= 4 * GIB
    assert any("4.00 GiB" in line and line.endswith(": the default") for line in most.lines)
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
    for asked_for in ({"num_blocks": 10}, {"kv_cache_memory_bytes": 10 * BLOCK_BYTES}):
        given = resolve(**asked_for)
        assert any("KV cache" in line and "160 tokens" in line for line in given.lines)
    asked = resolve(num_blocks=10, max_model_len=2048)
    assert asked.config.model.max_model_len == 2048
    assert any("2048" in line and "160" in line for line in asked.lines)


@pytest.mark.parametrize("facts, threads", [
    ({}, 4), ({"num_affinity_cpus": 2}, 2), ({"cpu_quota": 2.9}, 3), ({"cpu_quota": 2.3}, 2),
    ({"cpu_quota": 1.5}, 2), ({"cpu_quota": 0.5}, 1), ({"num_cores": 1}, 1),
])
def test_threads(facts: dict[str, float], threads: int) -> None:
    machine = dataclasses.replace(MACHINE, **facts)  # type: ignore[arg-type]
    assert resolve(machine).config.model.num_threads == threads
    assert resolve(num_threads=3).config.model.num_threads == 3


def test_no_more_threads_than_cpus() -> None:
    clamped = resolve(num_threads=20)
    assert clamped.config.model.num_threads == MACHINE.num_affinity_cpus == 8
    assert any("threads 8" in line and "20" in line for line in clamped.lines)


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


@pytest.mark.parametrize("dtype, expected", [("auto", "int8"), ("bfloat16", "bf16"),
                                             ("float32", "f32"), ("int8", "int8")])
def test_kv_dtype(dtype: str, expected: str) -> None:
    assert resolve(kv_cache_dtype=dtype).config.cache.dtype == expected


@pytest.mark.parametrize("args", [
    {"max_num_seqs": 0}, {"max_model_len": -1}, {"block_size": 8}, {"block_size": 24},
    {"kv_cache_dtype": "fp4"}, {"backend": "cuda"}, {"scheduling_policy": "random"},
    {"num_threads": 1000}, {"seed": -1}, {"kv_cache_memory_bytes": 100},
    {"num_blocks": 4, "kv_cache_memory_bytes": 1 << 30}, {"max_num_batched_tokens": True},
    {"max_prefill_beside_decodes": -1}, {"long_prefill_token_threshold": -1},
    {"long_prefill_token_threshold": 1.5},
    {"block_size": "16"}, {"seed": "x"}, {"num_blocks": 10**9},
    {"kv_cache_memory_bytes": 65 * GIB}, {"block_size": 16.0}, {"block_size": None},
    {"max_num_waiting": None}, {"max_num_waiting": 10**12}, {"seed": 1.5}, {"seed": 2**64},
    {"enable_prefix_caching": "no"}, {"enable_chunked_prefill": 0},
    {"long_prefill_token_threshold": None}, {"long_prefill_token_threshold": 10**30},
    {"max_num_seqs": 10**10}, {"block_size": 16 * 10**12}, {"backend": None},
    {"scheduling_policy": None}, {"kv_cache_dtype": None}, {"num_blocks": "9" * 1000},
])
def test_bad_arguments_are_named(args: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(**args)  # type: ignore[arg-type]
    assert caught.value.param in args and "\n" not in caught.value.message


@pytest.mark.parametrize("name, value", [
    ("num_blocks", 10**12), ("kv_cache_memory_bytes", 900 * 10**12), ("block_size", 16 * 10**8),
    ("max_num_batched_tokens", 10**12),
])
def test_a_size_beyond_the_memory_names_the_largest_that_works(name: str, value: int) -> None:
    machine = dataclasses.replace(MACHINE, available_bytes=GIB)
    with pytest.raises(ConfigError, match=f"^{name} is {value}: ") as caught:
        resolve(machine, **{name: value})
    found = re.search(r"give at most (\d+)|step of (\d+) tokens", caught.value.message)
    assert found is not None
    largest = int(found[1] or found[2])
    if name == "block_size":
        resolve(machine, block_size=largest, num_blocks=1)
        return
    resolve(machine, **{name: largest})
    with pytest.raises(ConfigError):
        resolve(machine, **{name: largest + 1})


def test_a_default_size_that_holds_no_block_blames_the_block() -> None:
    machine = dataclasses.replace(MACHINE, available_bytes=GIB)
    with pytest.raises(ConfigError, match=r"default size .*give at most") as caught:
        resolve(machine, block_size=16 * 2000)
    assert caught.value.param == "block_size"
    with pytest.raises(ConfigError, match="give at most 16,"):
        resolve(dataclasses.replace(MACHINE, available_bytes=BLOCK_BYTES))


def test_numbers_of_other_integer_types_become_plain() -> None:
    config = resolve(num_blocks=np.int64(9), block_size=np.uint8(32), seed=np.uint64(2**63),
                     long_prefill_token_threshold=np.int32(5)).config
    for value in (config.cache.num_blocks, config.cache.block_size, config.model.seed,
                  config.scheduler.long_prefill_token_threshold):
        assert type(value) is int
    assert config.model.seed == 2**63


def test_a_limit_of_the_shell_is_memory_too() -> None:
    code = ("import resource\n"
            "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.RLIM_INFINITY))\n"
            "from octavo.machine import machine_facts\n"
            "print(machine_facts(has_native=False).available_bytes)\n")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(run.stdout) < 2 << 30


def test_this_machine_is_measured() -> None:
    facts = machine_facts(has_native=False)
    assert 1 <= facts.num_cores <= facts.num_affinity_cpus
    assert facts.available_bytes > 1 << 20
    assert facts.cpu_quota is None or facts.cpu_quota > 0


def test_a_context_beyond_the_trained_one_must_be_allowed() -> None:
    with pytest.raises(ConfigError, match=r"up to 8192 .*allow_long_max_model_len") as refusal:
        resolve(max_model_len=9000)
    assert refusal.value.param == "max_model_len"
    allowed = resolve(max_model_len=9000, allow_long_max_model_len=True)
    assert allowed.config.model.max_model_len == 9000
    assert any("9000" in line and "8192" in line for line in allowed.lines)
    assert resolve(allow_long_max_model_len=True).config.model.max_model_len == 8192
