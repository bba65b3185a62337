"""Arguments + model facts + machine facts -> EngineConfig. One pass, pure; says what it chose.

Reads no file, no environment and no clock: everything comes in as a value. Every default that
depends on something is decided here and nowhere else.
"""

import dataclasses
import operator
from typing import Any, Literal

from octavo.config import (
    BackendName,
    CacheSection,
    EngineConfig,
    KVCacheDtype,
    ModelSection,
    Quantization,
    SchedulerSection,
    SchedulingPolicy,
    ServerSection,
)
from octavo.core.refusals import short
from octavo.errors import ConfigError
from octavo.kvcache.spec import KVCacheSpec
from octavo.machine import MachineFacts
from octavo.weights.model_config import ModelConfig

GIB = 1 << 30
# KV size default: enough for a chat server, small beside what else the machine does
MAX_DEFAULT_KV_BYTES = 4 * GIB
DEFAULT_KV_FRACTION = 0.25
DEFAULT_MAX_NUM_SEQS = 64
# one step of this many tokens takes about a second on two cores: other requests wait that long
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
KV_TILE = 16  # tokens of a K tile; block_size is a multiple
# a step of a million tokens takes minutes on any machine this runs on: nobody means more
MAX_BATCHED_TOKENS = 1 << 20
_COUNT_MAX = 2**31 - 1  # counts cross the wire and the native module in this type
_COUNTS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_num_waiting",
           "kv_cache_memory_bytes", "num_blocks", "block_size", "num_threads")
_BOUND_BY_MEMORY = ("max_num_batched_tokens", "kv_cache_memory_bytes", "num_blocks")
_SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "allow_long_max_model_len",
             "jump_forward", "async_scheduling", "merge_shared_prefix")


@dataclasses.dataclass(slots=True, frozen=True, kw_only=True)
class EngineArgs:
    """Engine arguments as the user gives them, with vLLM's names. None and "auto": decide."""

    model: str
    served_model_name: tuple[str, ...] = ()
    max_model_len: int | None = None
    allow_long_max_model_len: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_waiting: int = 4096
    long_prefill_token_threshold: int = 0
    max_prefill_beside_decodes: int = 256
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    jump_forward: bool = True
    async_scheduling: bool = False
    merge_shared_prefix: bool = True
    scheduling_policy: str = "fcfs"
    backend: str = "auto"
    quantization: str | None = None
    num_threads: int | None = None
    seed: int | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class Resolution:
    """The config, and one line for each choice made: what and why."""

    config: EngineConfig
    lines: tuple[str, ...]


def resolve_config(args: EngineArgs, *, path: str, model: ModelConfig, machine: MachineFacts,
                   server: ServerSection | None = None) -> Resolution:
    """The config of one engine.

    path: the resolved model file. Raises ConfigError naming argument, value and fix.
    """
    lines: list[str] = []
    args = _checked(args)
    backend = _backend(args, machine, lines)
    threads = _threads(args, machine, lines)
    quantization = _quantization(args, lines)
    dtype = _kv_dtype(args)
    max_num_seqs = args.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    wanted_len = _wanted_len(args, model, lines)
    spec = KVCacheSpec(
        num_layers=model.num_layers, num_kv_heads=model.num_kv_heads, head_dim=model.head_dim,
        block_size=args.block_size, dtype=dtype,
    )
    num_blocks = _num_blocks(args, spec, machine, max_num_seqs=max_num_seqs,
                             max_model_len=wanted_len, lines=lines)
    max_model_len = _fit_len(args, wanted_len, num_blocks * args.block_size, lines)
    budget = _budget(args, max_model_len, max_num_seqs, lines)
    _check_step_fits(args, model, machine.available_bytes - num_blocks * spec.bytes_per_block)
    config = EngineConfig(
        model=ModelSection(
            path=path, served_model_names=args.served_model_name or (args.model,),
            max_model_len=max_model_len, backend=backend, num_threads=threads,
            quantization=quantization, seed=args.seed,
        ),
        cache=CacheSection(
            block_size=args.block_size, num_blocks=num_blocks, dtype=dtype,
            enable_prefix_caching=args.enable_prefix_caching,
            merge_shared_prefix=args.merge_shared_prefix,
        ),
        scheduler=SchedulerSection(
            max_num_batched_tokens=budget, max_num_seqs=max_num_seqs,
            max_model_len=max_model_len, max_num_waiting=args.max_num_waiting,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            max_prefill_beside_decodes=args.max_prefill_beside_decodes,
            enable_chunked_prefill=args.enable_chunked_prefill, policy=_policy(args),
            jump_forward=args.jump_forward, async_scheduling=args.async_scheduling,
        ),
        server=server or ServerSection(),
    )
    return Resolution(config, tuple(lines))


def _bad(name: str, value: object, fix: str) -> ConfigError:
    return ConfigError(f"{name} is {short(value)}: {fix}", param=name)


def _checked(args: EngineArgs) -> EngineArgs:
    """The arguments with their plain types, or a ConfigError that names the one that has none."""
    for name in _SWITCHES:
        if not isinstance(getattr(args, name), bool):
            raise _bad(name, getattr(args, name), "give True or False")
    plain: dict[str, Any] = {
        name: _plain_count(name, getattr(args, name)) for name in _COUNTS
        if getattr(args, name) is not None
    }
    for name in ("long_prefill_token_threshold", "max_prefill_beside_decodes"):
        bound = _plain_int(getattr(args, name))
        if bound is None or not 0 <= bound <= _COUNT_MAX:
            raise _bad(name, getattr(args, name),
                       f"give 0 (off) or a positive count of at most {_COUNT_MAX}")
        plain[name] = bound
    block_size = plain.get("block_size", 0)  # it has a default: None is refused
    if block_size < KV_TILE or block_size % KV_TILE:
        raise _bad("block_size", args.block_size, f"give a multiple of {KV_TILE}")
    if args.kv_cache_memory_bytes is not None and args.num_blocks is not None:
        raise _bad("num_blocks", args.num_blocks,
                   "give either this or kv_cache_memory_bytes, not both")
    if "max_num_waiting" not in plain:
        raise _bad("max_num_waiting", None, "give a whole number of at least 1")
    seed = None if args.seed is None else _plain_int(args.seed)
    if args.seed is not None and (seed is None or not 0 <= seed < 1 << 64):
        raise _bad("seed", args.seed, "give 0 to 2**64 - 1")
    return dataclasses.replace(args, seed=seed, **plain)


def _plain_count(name: str, value: object) -> int:
    plain = _plain_int(value)
    if plain is None or plain < 1:
        raise _bad(name, value, "give a whole number of at least 1")
    if plain > _COUNT_MAX and name not in _BOUND_BY_MEMORY:
        raise _bad(name, value, f"give at most {_COUNT_MAX}")
    return plain


def _plain_int(value: object) -> int | None:
    """A whole number of any integer type; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _backend(args: EngineArgs, machine: MachineFacts, lines: list[str]) -> BackendName:
    if args.backend == "auto":
        if machine.has_native:
            lines.append("backend cpu: the native module is built")
            return "cpu"
        lines.append("backend reference (NumPy, slow): the native module is not built; "
                     "install a C++17 compiler and reinstall for speed")
        return "reference"
    if args.backend == "cpu":
        if not machine.has_native:
            raise _bad("backend", "cpu", "the native module is not built; install a C++17 "
                       "compiler and reinstall, or use reference")
        return "cpu"
    if args.backend == "reference":
        return "reference"
    raise _bad("backend", args.backend, "give auto, cpu or reference")


def _threads(args: EngineArgs, machine: MachineFacts, lines: list[str]) -> int:
    if args.num_threads is not None:
        if args.num_threads > 4 * machine.num_affinity_cpus:
            raise _bad("num_threads", args.num_threads,
                       f"give at most {4 * machine.num_affinity_cpus}, four for each of the "
                       f"{machine.num_affinity_cpus} CPUs this process may use")
        # more threads than CPUs only take turns: 6 to 14 % slower here with four times as many
        if args.num_threads > machine.num_affinity_cpus:
            lines.append(f"threads {machine.num_affinity_cpus}: {args.num_threads} were asked for, "
                         f"and this process may use {machine.num_affinity_cpus} CPUs")
        return min(args.num_threads, machine.num_affinity_cpus)
    # a second hyperthread of a core adds nothing to kernels that saturate it
    choices = {"physical cores": machine.num_cores, "CPU affinity": machine.num_affinity_cpus}
    if machine.cpu_quota is not None:
        choices["cgroup quota"] = _quota_threads(machine.cpu_quota)
    threads = max(1, min(choices.values()))
    why = min(choices, key=lambda name: choices[name])
    lines.append(f"threads {threads}: {why}")
    return threads


def _quota_threads(quota: float) -> int:
    """Its whole CPUs, which run evenly; one more, stopped for a part of each period, where the
    whole ones leave more than 15 % of the quota unused."""
    whole = int(quota)
    return whole if whole >= 0.85 * quota else whole + 1


def _quantization(args: EngineArgs, lines: list[str]) -> Quantization | None:
    match args.quantization:
        case None:
            return None
        case "int8":
            lines.append("weights int8: float matrices are quantized while they are loaded")
            return "int8"
        case "int4":
            lines.append("weights int4 (embeddings and output matrix int8): float matrices are "
                         "quantized while they are loaded")
            return "int4"
    raise _bad("quantization", args.quantization, "give int8 or int4, for float weights, or leave "
               "it out: a file that is quantized runs as it is")


def _kv_dtype(args: EngineArgs) -> KVCacheDtype:
    match args.kv_cache_dtype:
        case "auto":  # costs no likelihood that could be measured: docs/LOG.md
            return "int8"
        case "bf16" | "bfloat16":
            return "bf16"
        case "f32" | "float32":
            return "f32"
        case "int8":
            return "int8"
    raise _bad("kv_cache_dtype", args.kv_cache_dtype, "give auto, f32, bf16 or int8")


def _policy(args: EngineArgs) -> SchedulingPolicy:
    if args.scheduling_policy == "fcfs":
        return "fcfs"
    if args.scheduling_policy == "priority":
        return "priority"
    raise _bad("scheduling_policy", args.scheduling_policy, "give fcfs or priority")


def _wanted_len(args: EngineArgs, model: ModelConfig, lines: list[str]) -> int:
    longest = model.max_position_embeddings
    if args.max_model_len is None:
        return longest
    if args.max_model_len > longest:
        if not args.allow_long_max_model_len:
            raise _bad("max_model_len", args.max_model_len,
                       f"the model knows positions up to {longest} (allow_long_max_model_len "
                       "runs it beyond them, and its answers get worse there)")
        lines.append(f"max_model_len {args.max_model_len}: beyond the {longest} positions the "
                     "model was trained for, as allow_long_max_model_len says")
    return args.max_model_len


def _num_blocks(args: EngineArgs, spec: KVCacheSpec, machine: MachineFacts, *,
                max_num_seqs: int, max_model_len: int, lines: list[str]) -> int:
    available = machine.available_bytes
    if spec.bytes_per_block > available:
        raise _bad("block_size", args.block_size,
                   f"one block would take {_gib(spec.bytes_per_block)}, and this process may use "
                   f"{_gib(available)} more: give at most {_largest_block_size(spec, available)}")
    # memory is taken when it is first written: too much of it would end the process much later
    if args.num_blocks is not None:
        if args.num_blocks * spec.bytes_per_block > available:
            raise _too_large("num_blocks", args.num_blocks,
                             args.num_blocks * spec.bytes_per_block, available,
                             largest=available // spec.bytes_per_block)
        lines.append(_kv_line(spec, args.num_blocks, "num_blocks"))
        return args.num_blocks
    if args.kv_cache_memory_bytes is not None:
        if args.kv_cache_memory_bytes > available:
            raise _too_large("kv_cache_memory_bytes", args.kv_cache_memory_bytes,
                             args.kv_cache_memory_bytes, available, largest=available)
        num_blocks = spec.num_blocks_for(args.kv_cache_memory_bytes)
        lines.append(_kv_line(spec, num_blocks, "kv_cache_memory_bytes"))
        return num_blocks
    enough = max_num_seqs * -(-max_model_len // args.block_size)
    share = int(available * DEFAULT_KV_FRACTION)
    choices: dict[Literal["4 GiB", "25 % of free memory", "all that can be used"], int] = {
        "4 GiB": MAX_DEFAULT_KV_BYTES,
        "25 % of free memory": share,
        "all that can be used": enough * spec.bytes_per_block,
    }
    why = min(choices, key=lambda name: choices[name])
    if choices[why] < spec.bytes_per_block:  # huge blocks, or next to no memory
        raise _bad("block_size", args.block_size,
                   f"one block would take {_gib(spec.bytes_per_block)}, more than the KV cache's "
                   f"default size ({why}): give at most "
                   f"{_largest_block_size(spec, choices[why])}, or give num_blocks")
    num_blocks = spec.num_blocks_for(choices[why])
    lines.append(_kv_line(spec, num_blocks, "the default" if why == "4 GiB" else why))
    return num_blocks


def _kv_line(spec: KVCacheSpec, num_blocks: int, why: str) -> str:
    return (f"KV cache {_gib(num_blocks * spec.bytes_per_block)} {spec.dtype}, "
            f"{num_blocks * spec.block_size} tokens: {why}")


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _largest_block_size(spec: KVCacheSpec, size: int) -> int:
    """A block size of which one block fits into `size` bytes; never less than the smallest."""
    per_token = -(-spec.bytes_per_block // spec.block_size)
    return max(KV_TILE, size // per_token // KV_TILE * KV_TILE)


def _too_large(name: str, value: int, size: int, available: int, *, largest: int) -> ConfigError:
    return _bad(name, value, f"the KV cache would take {_gib(size)}, and this process may use "
                f"{_gib(available)} more: give at most {largest}")


def _check_step_fits(args: EngineArgs, model: ModelConfig, available: int) -> None:
    """Activations of a step live beside the KV cache, one row a token."""
    budget = args.max_num_batched_tokens
    if budget is None:
        return
    # float32: hidden state before and after, the MLP's inner row, and q, k, v
    row_bytes = 4 * (2 * model.hidden_size + model.intermediate_size
                     + (model.num_heads + 2 * model.num_kv_heads) * model.head_dim)
    largest = max(1, min(MAX_BATCHED_TOKENS, available // row_bytes))
    if budget > largest:
        raise _bad("max_num_batched_tokens", budget,
                   f"a step of {largest} tokens is the largest that can run here: give at most "
                   "that")


def _fit_len(args: EngineArgs, wanted: int, capacity: int, lines: list[str]) -> int:
    if wanted <= capacity:
        return wanted
    if args.max_model_len is not None:
        lines.append(f"max_model_len {wanted} is more than the {capacity} tokens the KV cache "
                     "holds: longer requests are refused or end there (kv_cache_memory_bytes)")
        return wanted
    lines.append(f"max_model_len {capacity} instead of the model's {wanted}: the KV cache holds "
                 "no more")
    return capacity


def _budget(args: EngineArgs, max_model_len: int, max_num_seqs: int, lines: list[str]) -> int:
    budget = args.max_num_batched_tokens
    if args.enable_chunked_prefill:
        chosen = budget or max(DEFAULT_MAX_NUM_BATCHED_TOKENS, max_num_seqs)
    elif budget is None:
        chosen = max(DEFAULT_MAX_NUM_BATCHED_TOKENS, max_num_seqs, max_model_len)
        lines.append(f"max_num_batched_tokens {chosen}: prompts are not chunked")
    elif budget < max_model_len:
        raise _bad("max_num_batched_tokens", budget,
                   f"without chunked prefill a prompt of max_model_len={max_model_len} must fit "
                   "one step")
    else:
        chosen = budget
    return chosen
