"""Frozen configuration sections. A component receives its section, never the whole.

Only data and defaults here: arguments are resolved into these once, in config_resolve.py.
"""

import dataclasses
from typing import Literal

KVCacheDtype = Literal["f32", "bf16", "int8"]
SchedulingPolicy = Literal["fcfs", "priority"]
BackendName = Literal["cpu", "reference"]
Quantization = Literal["int8", "int4"]
LogFormat = Literal["text", "json"]


@dataclasses.dataclass(slots=True, frozen=True)
class ModelSection:
    """Which model, and how it runs."""

    path: str  # resolved GGUF file or folder
    served_model_names: tuple[str, ...]
    max_model_len: int
    backend: BackendName = "cpu"
    num_threads: int = 1
    quantization: Quantization | None = None  # of float weights, while they are loaded
    seed: int | None = None  # from it come the seeds of requests that give none; None: random


@dataclasses.dataclass(slots=True, frozen=True)
class CacheSection:
    """The paged KV cache."""

    block_size: int = 16
    num_blocks: int = 0
    dtype: KVCacheDtype = "bf16"
    enable_prefix_caching: bool = True
    merge_shared_prefix: bool = True  # a step reads blocks that sequences share once


@dataclasses.dataclass(slots=True, frozen=True)
class SchedulerSection:
    """Limits of a step and of the queues."""

    max_num_batched_tokens: int = 512  # token budget of one step
    max_num_seqs: int = 64  # most requests running at once
    max_model_len: int = 8192
    max_num_waiting: int = 4096  # beyond this a request is refused with QueueFullError
    long_prefill_token_threshold: int = 0  # most prompt tokens of one request a step; 0 = budget
    # most prompt tokens of a step in which others decode; 0 = budget
    max_prefill_beside_decodes: int = 0
    enable_chunked_prefill: bool = True
    jump_forward: bool = True  # text that a grammar forces is taken without a step for each token
    async_scheduling: bool = False  # the next step is scheduled while one runs
    policy: SchedulingPolicy = "fcfs"


@dataclasses.dataclass(slots=True, frozen=True)
class ServerSection:
    """The HTTP front end."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    chat_template: str | None = None  # path of a Jinja file
    root_path: str = ""
    tool_call_parser: str = "auto"  # how the model writes calls: octavo/tools/formats.py
    reasoning_parser: str = "auto"
    max_body_bytes: int = 16 * 1024 * 1024
    serve_page: bool = True  # the page for browsers at /
    strict_params: bool = False  # refuse request fields that no route knows
    shutdown_timeout_s: float = 30.0  # how long Ctrl-C waits for running requests
    request_timeout_s: float = 0.0  # a request that takes longer ends with an error; 0: never
    engine_restarts: int = 1  # how often in ten minutes an engine that died is started again
    # a busy engine without a step for this long is ended: minutes, because a step of a large model
    # on a slow machine takes one
    engine_step_timeout_s: float = 300.0
    metrics_prefix: str = "octavo"
    log_level: str = "info"
    log_format: LogFormat = "text"
    log_interval_s: float = 10.0  # between two lines of statistics; 0: none


@dataclasses.dataclass(slots=True, frozen=True)
class EngineConfig:
    """Everything one engine needs, resolved and frozen."""

    model: ModelSection
    cache: CacheSection
    scheduler: SchedulerSection
    server: ServerSection = dataclasses.field(default_factory=ServerSection)
