"""AsyncLLM: the asyncio front of one engine, for servers.

One reader task feeds the output processor; each request has a collector that merges what its
consumer has not fetched yet, so memory stays bounded. Cancelling a generator aborts its request.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

from prometheus_client.registry import CollectorRegistry

from octavo import __version__
from octavo.config import EngineConfig, ServerSection
from octavo.config_resolve import EngineArgs
from octavo.core.live import LiveHello
from octavo.core.messages import EngineCoreOutputs, EngineReady, SchedulerStats
from octavo.core.sampling_params import SamplingParams
from octavo.engine.chat import Message, chat_prompt
from octavo.engine.core_client import CoreHost, ProcessHost, ThreadHost
from octavo.engine.core_process import BuildCore
from octavo.engine.default_params import default_sampling_params
from octavo.engine.factory import FrontEndParts, build_core, load_front_end, resolve_args
from octavo.engine.input_processor import InputProcessor, PreparedRequest, Prompt
from octavo.engine.live_feed import LiveFeed, LiveListener
from octavo.engine.load_arguments import model_argument, refuse_unknown, template_argument
from octavo.engine.metrics import FrontEndMetrics
from octavo.engine.metrics_export import EngineCollector, EngineFacts, make_registry
from octavo.engine.output_collector import OutputCollector
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import OutputKind, RequestOutput
from octavo.engine.supervisor import EngineSupervisor, Listener, Upkeep
from octavo.errors import (
    ConfigError,
    EngineDeadError,
    EngineLoadingError,
    InvalidRequestError,
    OctavoError,
    QueueFullError,
    RequestTimeoutError,
)
from octavo.grammar.checker import NUM_HELPERS

EngineKind = Literal["process", "inproc"]
# tokenizing this many characters, or checking this many ids, takes some milliseconds: longer
# prompts go to a thread
_INLINE_SIZE = 4096
_RESTARTING = "the engine died and is being started again: try again in a few seconds"


class AsyncLLM:
    """Runs requests on an engine in its own process (or "inproc": in a thread).

    Construction starts loading and returns at once (the tokenizer is loaded here, so a broken
    model file raises here). `await wait_ready()` waits for the engine. All coroutines must run in
    one event loop. Arguments and errors of the constructor: as LLM's.

    Attributes: config; tokenizer; chat_template; engine_info (limits, None until ready); metrics;
        sampling_advice (of generation_config, by field).
    """

    def __init__(self, model: str | os.PathLike[str], *, max_model_len: int | None = None,
                 allow_long_max_model_len: bool = False,
                 max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None,
                 max_num_waiting: int = 4096, kv_cache_dtype: str = "auto",
                 kv_cache_memory_bytes: int | None = None, num_blocks: int | None = None,
                 block_size: int = 16, enable_prefix_caching: bool = True,
                 enable_chunked_prefill: bool = True, long_prefill_token_threshold: int = 0,
                 max_prefill_beside_decodes: int = 256,
                 jump_forward: bool = True, async_scheduling: bool = False,
                 merge_shared_prefix: bool = True, backend: str = "auto",
                 quantization: str | None = None, num_threads: int | None = None,
                 seed: int | None = None, chat_template: str | os.PathLike[str] | None = None,
                 scheduling_policy: str = "fcfs", engine: EngineKind = "process",
                 engine_restarts: int = 1,
                 on_death: Callable[[OctavoError], None] | None = None,
                 **unknown: object) -> None:
        refuse_unknown(unknown, AsyncLLM.__init__)
        args = EngineArgs(
            model=model_argument(model), max_model_len=max_model_len,
            allow_long_max_model_len=allow_long_max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, max_num_waiting=max_num_waiting,
            kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=kv_cache_memory_bytes,
            num_blocks=num_blocks, block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            enable_chunked_prefill=enable_chunked_prefill,
            long_prefill_token_threshold=long_prefill_token_threshold,
            max_prefill_beside_decodes=max_prefill_beside_decodes,
            jump_forward=jump_forward, async_scheduling=async_scheduling,
            merge_shared_prefix=merge_shared_prefix, backend=backend,
            quantization=quantization,
            num_threads=num_threads, seed=seed, scheduling_policy=scheduling_policy,
        )
        self._set_up_from(args, chat_template, engine, engine_restarts, on_death)

    @classmethod
    def from_engine_args(cls, args: EngineArgs, *,
                         chat_template: str | os.PathLike[str] | None = None,
                         engine: EngineKind = "process", engine_restarts: int = 1,
                         on_death: Callable[[OctavoError], None] | None = None) -> "AsyncLLM":
        """An AsyncLLM of arguments that were gathered before; else as the constructor."""
        if not isinstance(args, EngineArgs):
            raise ConfigError(f"args is a {type(args).__name__}: give an EngineArgs",
                              param="args")
        self = cls.__new__(cls)
        self._set_up_from(args, chat_template, engine, engine_restarts, on_death)
        return self

    @classmethod
    def from_config(cls, config: EngineConfig, *, engine: EngineKind = "process",
                    on_death: Callable[[OctavoError], None] | None = None) -> "AsyncLLM":
        """An AsyncLLM of a resolved config.

        on_death: called once, in the event loop, when the engine dies unasked and is not started
        again (config.server.engine_restarts), or cannot load; by then every request has failed
        with that error, an EngineDeadError after loading.
        """
        self = cls.__new__(cls)
        self._set_up(config, chat_template=config.server.chat_template, engine=engine,
                     on_death=on_death)
        return self

    @classmethod
    def from_parts(cls, config: EngineConfig, parts: FrontEndParts, host: CoreHost, *,
                   restart: Callable[[], CoreHost] | None = None,
                   on_death: Callable[[OctavoError], None] | None = None) -> "AsyncLLM":
        """An AsyncLLM over a host that was started elsewhere. restart: starts another like it."""
        self = cls.__new__(cls)
        self._join(config, parts, host, restart, on_death)
        return self

    def _set_up_from(self, args: EngineArgs, chat_template: str | os.PathLike[str] | None,
                     engine: EngineKind, engine_restarts: int,
                     on_death: Callable[[OctavoError], None] | None) -> None:
        template = template_argument(chat_template)
        if not isinstance(engine_restarts, int) or engine_restarts < 0:
            raise ConfigError(f"engine_restarts is {engine_restarts!r}: give 0 or a count",
                              param="engine_restarts")
        server = ServerSection(engine_restarts=engine_restarts)
        self._set_up(resolve_args(args, server=server).config, chat_template=template,
                     engine=engine, on_death=on_death)

    def _set_up(self, config: EngineConfig, *, chat_template: str | None, engine: EngineKind,
                on_death: Callable[[OctavoError], None] | None) -> None:
        if engine not in get_args(EngineKind):
            raise ConfigError(f"engine is {engine!r}: give process or inproc", param="engine")
        host = start_host(config, engine, build_core)
        try:
            parts = load_front_end(config, chat_template=chat_template)
            self._join(config, parts, host, lambda: start_host(config, engine, build_core),
                       on_death)
        except BaseException:
            host.sock.close()  # the engine ends when its socket does
            host.end(0.0)  # a process is ended and reaped now
            raise

    def _join(self, config: EngineConfig, parts: FrontEndParts, host: CoreHost,
              restart: Callable[[], CoreHost] | None,
              on_death: Callable[[OctavoError], None] | None) -> None:
        self.config = config
        self.tokenizer = parts.tokenizer
        self.chat_template = parts.chat_template
        self.engine_info: EngineReady | None = None
        self.sampling_advice = parts.model.generation_defaults
        default_sampling_params(self.sampling_advice)  # a bad file is refused at load
        self._live = LiveFeed(self._watch_core)
        self._engine = EngineSupervisor(
            host, restart,
            upkeep=Upkeep(config.server.engine_restarts, config.server.engine_step_timeout_s),
            listener=Listener(
                on_outputs=self._take, on_events=self._live.take, on_ready=self._greet,
                on_lost=self._lost, on_death=self._died,
                is_busy=lambda: self.num_unfinished_requests > 0,
                on_look=self._end_late_requests))
        self._errored: OctavoError | None = None
        self._on_death = on_death
        self._shut_down = False
        self._ended = False
        self._inputs = InputProcessor(parts.tokenizer, parts.limits(config),
                                      eos_token_ids=parts.eos_token_ids)
        # of their own: slow checks of grammars hold up nothing but one another
        self._grammar_threads = ThreadPoolExecutor(NUM_HELPERS, thread_name_prefix="octavo-check")
        self.metrics = FrontEndMetrics()
        self._outputs = OutputProcessor(parts.tokenizer, self.metrics)
        self._stats = SchedulerStats()
        self._idle = asyncio.Event()
        self._idle.set()
        self.metrics_registry: CollectorRegistry = make_registry(EngineCollector(
            self.metrics, lambda: self._stats, _facts(config),
            prefix=config.server.metrics_prefix, is_ready=lambda: self.is_ready))

    async def wait_ready(self) -> EngineReady:
        """Returns once the engine is loaded. Raises ModelLoadError, ConfigError, ... (the typed
        error of the engine process) or EngineDeadError."""
        client = await self._engine.start()
        if client is None:
            raise EngineLoadingError(_RESTARTING)
        self.engine_info = await asyncio.shield(client.ready)
        return self.engine_info

    @property
    def is_ready(self) -> bool:
        """Loaded and alive."""
        return self._errored is None and not self._shut_down and self._engine.is_ready

    @property
    def errored(self) -> OctavoError | None:
        """Why the engine is gone, or None."""
        return self._errored

    @property
    def engine_pid(self) -> int | None:
        """The engine's process; None if it runs in this one."""
        return self._engine.host.pid

    @property
    def max_num_samples(self) -> int:
        """Most samples, of all requests together, that may run or wait at once."""
        limits = self.config.scheduler
        return limits.max_num_seqs + limits.max_num_waiting

    @property
    def num_unfinished_requests(self) -> int:
        """User requests running or waiting."""
        return self._outputs.num_requests

    def get_default_sampling_params(self) -> SamplingParams:
        """SamplingParams with the model's generation_config defaults (a fresh copy)."""
        return default_sampling_params(self.sampling_advice)

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams, request_id: str, *,
                       priority: int = 0, output_kind: OutputKind = "delta",
                       strict_max_tokens: bool = True) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until one has finished=True. Closing or cancelling aborts the request.

        Raises, at the first step: InvalidRequestError, ContextLengthError, RequestTooLargeError,
        QueueFullError, EngineLoadingError, EngineDeadError; later OctavoError when the request
        failed inside the engine, EngineDeadError when the engine died.
        output_kind: "delta" (what is new), "cumulative" (all so far), "final" (one output).
        strict_max_tokens: an explicit max_tokens beyond the context is a ContextLengthError;
        otherwise it is cut to what fits.
        """
        collector = await self.add_request(
            prompt, sampling_params, request_id, priority=priority, output_kind=output_kind,
            strict_max_tokens=strict_max_tokens)
        try:
            finished = False
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            if not collector.ended:  # else the id may be somebody else's by now
                self._abort(request_id, silent=True)
            collector.close()

    async def add_request(self, prompt: Prompt, sampling_params: SamplingParams,
                          request_id: str, *, priority: int = 0, output_kind: OutputKind = "delta",
                          strict_max_tokens: bool = True, score_only: bool = False
                          ) -> OutputCollector:
        """Starts a request; raises what generate() raises at its first step.

        score_only: the caller drops the token that is drawn (max_tokens is 1), and the prompt may
        fill the context.
        For callers that must know before they answer. Who stops fetching must call abort().
        """
        prepared = await self._prepare(prompt, sampling_params, request_id, priority=priority,
                                       output_kind=output_kind, score_only=score_only,
                                       strict_max_tokens=strict_max_tokens)
        return self._start([prepared], output_kind)[0]

    async def add_requests(self, requests: Sequence[tuple[Prompt, SamplingParams, str]], *,
                           output_kind: OutputKind = "delta", score_only: bool = False
                           ) -> list[OutputCollector]:
        """Starts (prompt, params, request id) requests at the same moment, or none: they are in the
        same step if its token budget allows. Otherwise as add_request()."""
        prepared = [await self._prepare(prompt, params, request_id, output_kind=output_kind,
                                        score_only=score_only)
                    for prompt, params, request_id in requests]
        return self._start(prepared, output_kind)

    async def _prepare(self, prompt: Prompt, sampling_params: SamplingParams, request_id: str, *,
                       output_kind: OutputKind, score_only: bool, priority: int = 0,
                       strict_max_tokens: bool = True) -> PreparedRequest:
        self._check_alive()
        self._check_id(request_id)
        if output_kind not in get_args(OutputKind):
            raise InvalidRequestError(f"output_kind is {output_kind!r}: give delta, cumulative or "
                                      "final", param="output_kind")
        self._check_room(1)
        inline = _size_of(prompt) < _INLINE_SIZE
        has_grammar = getattr(sampling_params, "structured_outputs", None) is not None

        def process() -> PreparedRequest:
            return self._inputs.process(request_id, prompt, sampling_params, priority=priority,
                                        strict_max_tokens=strict_max_tokens,
                                        score_only=score_only)

        if has_grammar:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._grammar_threads, process)
        return process() if inline else await asyncio.to_thread(process)

    def _start(self, requests: Sequence[PreparedRequest],
               kind: OutputKind) -> list[OutputCollector]:
        """Sends them to the core, in one frame."""
        self._check_alive()
        self._check_room(sum(prepared.params.n for prepared in requests))
        for prepared in requests:
            self._check_id(prepared.request_id)
        client = self._engine.client
        assert client is not None
        # first: what cannot be sent must leave no trace
        client.add([core for prepared in requests for core in prepared.core_requests])
        collectors = []
        for prepared in requests:
            collector = OutputCollector()
            collector.metrics = self._outputs.add(prepared, kind=kind, sink=collector.put)
            collectors.append(collector)
        self._engine.expect_news()
        self._idle.clear()
        return collectors

    async def chat_prompt(self, messages: Sequence[Message], *,
                          add_generation_prompt: bool = True,
                          continue_final_message: bool = False,
                          tools: Sequence[Mapping[str, Any]] | None = None,
                          chat_template_kwargs: Mapping[str, Any] | None = None
                          ) -> dict[str, Any]:
        """{"prompt": rendered text, "prompt_token_ids": ids} of a conversation.

        Raises InvalidRequestError. Runs in a thread: templates and long texts take time.
        """
        return await asyncio.to_thread(
            chat_prompt, self.tokenizer, self.chat_template, messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message, tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )

    async def abort(self, request_id: str) -> None:
        """Ends a request; its generator finishes with finish_reason "abort"."""
        self._abort(request_id, silent=False)

    async def stats(self) -> SchedulerStats:
        """The stats of the engine's last step."""
        return self._stats

    def watch(self, interval_s: float = 0.1) -> LiveListener:
        """Listens to what the engine does (docs/LIVE_VIEW.md has the events), at most one batch of
        events each interval_s seconds. Close the listener: while there is one, the engine takes a
        snapshot now and then. Raises EngineLoadingError, EngineDeadError, ListenersFullError."""
        self._check_alive()
        return self._live.listen(interval_s)

    async def reset_prefix_cache(self) -> None:
        """Drops every cached block no request holds."""
        self._check_alive()
        assert self._engine.client is not None
        self._engine.client.reset_prefix_cache()

    async def shutdown(self, *, drain: bool = False, timeout: float = 30.0) -> None:
        """Stops; new requests are refused from now on. With drain, running requests may finish
        for up to `timeout` seconds; the rest end with finish_reason "abort". Idempotent."""
        self._shut_down = True
        self._live.close()
        if drain and self._errored is None:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout)
            except TimeoutError:
                pass
        self._outputs.abort(self._outputs.request_ids)
        self._inputs.close()
        self._grammar_threads.shutdown(wait=False)
        await self._engine.shutdown()
        self._ended = True

    def _check_alive(self) -> None:
        if self._errored is not None:
            raise type(self._errored)(self._errored.message)
        if self._ended:
            raise EngineDeadError("this AsyncLLM was shut down: make a new one")
        if self._shut_down:
            raise EngineDeadError("the engine is shutting down: no new requests are taken")
        if self._engine.is_restarting:
            raise EngineLoadingError(_RESTARTING)
        if not self.is_ready:
            raise EngineLoadingError("the model is still loading: try again in a few seconds")

    def _check_id(self, request_id: str) -> None:
        if not isinstance(request_id, str) or not _is_encodable(request_id):
            raise InvalidRequestError(f"request_id is {request_id!r}: give text",
                                      param="request_id")
        if request_id in self._outputs:
            raise InvalidRequestError(f"request_id is {request_id!r}: it is in use, give another",
                                      param="request_id")

    def _check_room(self, num_samples: int) -> None:
        bound = self.max_num_samples
        if num_samples > bound:  # trying again would never help
            raise InvalidRequestError(
                f"n is {num_samples}: this engine runs or queues {bound} samples, give at most "
                "that many", param="n")
        if self._outputs.num_samples + num_samples > bound:
            self.metrics.admission_rejections += 1
            raise QueueFullError(
                f"{self._outputs.num_samples} requests are running or waiting, and {bound} may: "
                "try again later")

    def _take(self, outputs: EngineCoreOutputs) -> None:
        aborts = self._outputs.process(outputs)
        self._abort_in_core(aborts)
        if outputs.stats is not None:
            self._stats = outputs.stats
        self.metrics.observe_stats(outputs.stats)
        self._note_idle()

    def _greet(self, ready: EngineReady) -> None:
        config = self.config
        self._live.engine_ready(LiveHello(
            model=config.model.served_model_names[0], version=__version__,
            block_size=ready.block_size, num_blocks=ready.num_blocks,
            max_num_seqs=ready.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            max_model_len=ready.max_model_len, backend=ready.backend,
            threads=config.model.num_threads))

    def _watch_core(self, interval_s: float) -> None:
        if self._engine.client is not None:
            self._engine.client.watch(interval_s)

    def _abort(self, request_id: str, *, silent: bool) -> None:
        core_ids = self._outputs.abort([request_id], silent=silent)
        self._abort_in_core(core_ids)
        self._note_idle()

    def _abort_in_core(self, core_ids: list[str]) -> None:
        if core_ids and self._engine.client is not None and self._errored is None:
            self._engine.client.abort(core_ids)

    def _end_late_requests(self) -> None:
        limit = self.config.server.request_timeout_s
        if limit:
            error = RequestTimeoutError(
                f"the request took more than {limit:g} s and was ended: ask for fewer tokens, or "
                "start the server with a longer --request-timeout")
            self._abort_in_core(self._outputs.fail_older_than(limit, error))
            self._note_idle()

    def _note_idle(self) -> None:
        if not self._outputs.num_requests:
            self._idle.set()

    def _lost(self, error: OctavoError) -> None:
        self._outputs.fail_all(error)
        self.metrics.engine_restarted(self._stats)
        self._stats = SchedulerStats()
        self._idle.set()

    def _died(self, error: OctavoError) -> None:
        self._errored = error
        self._outputs.fail_all(error)
        self._live.close(error)
        self._idle.set()
        if self._on_death is not None:
            self._on_death(error)


def _facts(config: EngineConfig) -> EngineFacts:
    cache = config.cache
    return EngineFacts(config.model.served_model_names[0], config.model.backend, {
        "block_size": str(cache.block_size), "num_gpu_blocks": str(cache.num_blocks),
        "cache_dtype": cache.dtype, "enable_prefix_caching": str(cache.enable_prefix_caching)})


def _size_of(prompt: Prompt) -> int:
    """Characters or token ids of a prompt; 0 for what is none (it will be refused)."""
    parts = prompt.values() if isinstance(prompt, Mapping) else (prompt,)
    # an array of no dimensions has a length in name only
    return max((len(p) for p in parts if isinstance(p, Sized) and getattr(p, "ndim", None) != 0),
               default=0)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def start_host(config: EngineConfig, engine: EngineKind, build: BuildCore) -> CoreHost:
    """Starts the engine's process, or a thread with the core that `build` makes."""
    if engine == "process":
        return ProcessHost(config)
    return ThreadHost(config, build)
