"""LLM: the offline door. A model in this process; lists of prompts in, lists of outputs out."""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from octavo.config import EngineConfig
from octavo.config_resolve import EngineArgs
from octavo.core.messages import EngineCoreOutputs, SchedulerStats
from octavo.core.sampling_params import SamplingParams
from octavo.engine.call_arguments import (
    check_num_samples,
    conversation_list,
    params_list,
    priority_list,
    prompt_list,
)
from octavo.engine.chat import Message, chat_prompt
from octavo.engine.core_client import InprocClient
from octavo.engine.default_params import default_sampling_params
from octavo.engine.factory import build_core, load_front_end, resolve_args
from octavo.engine.input_processor import InputProcessor, PreparedRequest, Prompt
from octavo.engine.interrupts import interrupts_between_steps
from octavo.engine.load_arguments import model_argument, refuse_unknown, template_argument
from octavo.engine.metrics import FrontEndMetrics
from octavo.engine.metrics_export import EngineCollector, EngineFacts
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import RequestOutput
from octavo.engine.step_loop import StepLoop
from octavo.errors import EngineDeadError, InvalidRequestError, OctavoError
from octavo.tokenizer.tokenizer import Tokenizer

_T = TypeVar("_T")


class LLM:
    """A loaded model and its engine, stepped by the calling thread.

    Args (vLLM's names; None and "auto" mean: decide from model and machine):
        model: alias ("smollm2-135m"), GGUF file, Hugging Face folder or hub repo id.
        max_model_len: longest prompt + output in tokens. allow_long_max_model_len: it may go beyond
            the positions the model was trained for (the rotary ones go on; answers get worse).
        max_num_seqs: most sequences running at once.
        max_num_batched_tokens: most tokens of one step. max_prefill_beside_decodes: most prompt
            tokens of a step in which other requests generate, so that those do not stutter.
        kv_cache_dtype: "auto" (int8), "f32", "bf16" or "int8".
        kv_cache_memory_bytes, num_blocks: size of the KV cache, one or the other.
        block_size: tokens of a KV block, a multiple of 16.
        merge_shared_prefix: attention reads KV that sequences share once for all of them: faster,
            the same bits.
        backend: "auto", "cpu" or "reference".
        quantization: "int8" or "int4": float weights are quantized while they are loaded.
        seed: requests that give none get seeds derived from it, in order; None: random ones.
        chat_template: path of a Jinja file, instead of the model's own.
        scheduling_policy: "fcfs" or "priority".
        async_scheduling: text and scheduling are done while the model runs, in another thread:
            faster only where cores are free.

    Any other argument is a ConfigError that says what to give instead.

    Threads take turns: a call of one waits for those of others to end. Ctrl-C ends a call between
    two steps and drops its requests; the LLM goes on. A context manager; close with shutdown().
    Raises ModelNotFoundError, ModelLoadError, UnsupportedModelError, ConfigError.
    """

    def __init__(self, model: str | os.PathLike[str], *, max_model_len: int | None = None,
                 allow_long_max_model_len: bool = False,
                 max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None,
                 kv_cache_dtype: str = "auto", kv_cache_memory_bytes: int | None = None,
                 num_blocks: int | None = None, block_size: int = 16,
                 enable_prefix_caching: bool = True, enable_chunked_prefill: bool = True,
                 long_prefill_token_threshold: int = 0,
                 max_prefill_beside_decodes: int = 256, jump_forward: bool = True,
                 async_scheduling: bool = False, merge_shared_prefix: bool = True,
                 backend: str = "auto", quantization: str | None = None,
                 num_threads: int | None = None, seed: int | None = None,
                 chat_template: str | os.PathLike[str] | None = None,
                 scheduling_policy: str = "fcfs", **unknown: object) -> None:
        self._client: InprocClient | None = None  # first, so that __del__ works after an error
        self._turn = threading.Lock()
        self._turn_of: int | None = None  # the thread that is in a call
        refuse_unknown(unknown, LLM.__init__)
        template = template_argument(chat_template)
        args = EngineArgs(
            model=model_argument(model), max_model_len=max_model_len,
            allow_long_max_model_len=allow_long_max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, kv_cache_dtype=kv_cache_dtype,
            kv_cache_memory_bytes=kv_cache_memory_bytes, num_blocks=num_blocks,
            block_size=block_size, enable_prefix_caching=enable_prefix_caching,
            enable_chunked_prefill=enable_chunked_prefill,
            long_prefill_token_threshold=long_prefill_token_threshold,
            max_prefill_beside_decodes=max_prefill_beside_decodes,
            jump_forward=jump_forward, async_scheduling=async_scheduling,
            merge_shared_prefix=merge_shared_prefix, backend=backend,
            quantization=quantization, num_threads=num_threads, seed=seed,
            scheduling_policy=scheduling_policy,
        )
        resolution = resolve_args(args)
        self.config: EngineConfig = resolution.config
        if backend == "auto" and self.config.model.backend == "reference":
            print(f"octavo: {resolution.lines[0]}", file=sys.stderr)
        self._parts = load_front_end(self.config, chat_template=template)
        default_sampling_params(self._parts.model.generation_defaults)  # bad advice: refused now
        core, ready = build_core(self.config)
        self._client = InprocClient(core, ready)
        self._stats = self._client.stats()
        self._inputs = InputProcessor(self._parts.tokenizer, self._parts.limits(self.config),
                                      eos_token_ids=self._parts.eos_token_ids)
        self._metrics = FrontEndMetrics()
        self._outputs = OutputProcessor(self._parts.tokenizer, self._metrics)
        self._aborts: list[str] = []  # samples whose stop string came; the core has yet to hear
        self._num_requests = 0

    def generate(self, prompts: Prompt | Iterable[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool = True,
                 priority: Sequence[int] | None = None) -> list[RequestOutput]:
        """Outputs in the order of the prompts.

        prompts: one or many of: text, token ids (an array of integers too), {"prompt": text},
            {"prompt_token_ids": ids}.
        sampling_params: one for all, one each, or None for get_default_sampling_params().
        use_tqdm: a progress bar, where stderr is a terminal. priority: one each.
        Every prompt is checked before any runs. Raises InvalidRequestError and its subclasses
        (nothing has run), OctavoError when a request fails inside the engine, EngineDeadError.
        """
        self._alive()
        items = prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = params_list(sampling_params, len(items))
        check_num_samples(params, self.max_num_samples)
        priorities = priority_list(priority, len(items))
        return self._in_turn(lambda: self._generate(items, params, priorities, use_tqdm))

    def chat(self, messages: Iterable[Message] | Iterable[Sequence[Message]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
             use_tqdm: bool = True, add_generation_prompt: bool = True,
             continue_final_message: bool = False,
             tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None) -> list[RequestOutput]:
        """generate() for one conversation or a list of them, each a list of
        {"role": ..., "content": ...}.

        tools: functions in the shape of OpenAI's API, shown to the model by its chat template, and
            nothing more: no grammar holds the output to calls, and a call that the model writes is
            in the output's text as it wrote it (markup of special tokens: with
            skip_special_tokens=False). The server's routes enforce and parse calls.
        """
        self._alive()
        prompts: list[Prompt] = [
            chat_prompt(self._parts.tokenizer, self._parts.chat_template, conversation,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message, tools=tools,
                        chat_template_kwargs=chat_template_kwargs)
            for conversation in conversation_list(messages)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    @property
    def max_num_samples(self) -> int:
        """Most samples (n) of one request: as many may run or wait."""
        limits = self.config.scheduler
        return limits.max_num_seqs + limits.max_num_waiting

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._parts.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config advises, as a fresh SamplingParams."""
        return default_sampling_params(self._parts.model.generation_defaults)

    def get_metrics(self) -> dict[str, float]:
        """Every metric of `/metrics` by name; labels other than the engine's in braces, histograms
        as their _sum and _count."""
        found: dict[str, float] = {}
        collector = EngineCollector(self._metrics, self.stats, EngineFacts(""))
        for family in collector.collect():
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items()
                          if k not in ("model_name", "engine", "version", "backend")}
                if "le" in labels:
                    continue
                name = sample.name
                if labels:
                    name += "{" + ",".join(f"{k}={v}" for k, v in labels.items()) + "}"
                found[name] = sample.value
        return found

    def stats(self) -> SchedulerStats:
        """Counters and gauges of the engine core, as of its last step."""
        client = self._alive()
        if self._turn.acquire(blocking=False):  # else a step may be changing them
            try:
                self._stats = client.stats()
            finally:
                self._turn.release()
        return self._stats

    def describe(self) -> dict[str, str]:
        """How the model is stored and run: backend, instruction set, threads, tensor formats."""
        return self._alive().describe()

    def reset_prefix_cache(self) -> None:
        """Drops every cached block."""
        self._in_turn(lambda: self._alive().reset_prefix_cache())

    def shutdown(self) -> None:
        """Frees the model, after the calls of other threads. Idempotent."""
        self._in_turn(self._shut_down)

    def _shut_down(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.shutdown()
            self._inputs.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if getattr(self, "_client", None) is not None:
            self.shutdown()

    def _in_turn(self, call: Callable[[], _T]) -> _T:
        """Runs the call while no other thread is in one."""
        me = threading.get_ident()
        # a signal handler or a callback: waiting would never end. Only a held lock makes it true:
        # a Ctrl-C between two lines below may leave the name of a call that has ended.
        if self._turn_of == me and self._turn.locked():
            raise InvalidRequestError("this LLM is in a call of this thread already: wait until "
                                      "that has returned")
        with self._turn:
            try:
                self._turn_of = me
                return call()
            finally:
                self._turn_of = None
                if self._client is not None:
                    self._stats = self._client.stats()

    def _alive(self) -> InprocClient:
        if self._client is None:
            raise EngineDeadError("this LLM was shut down: make a new one")
        return self._client

    def _generate(self, items: Sequence[Prompt], params: Sequence[SamplingParams],
                  priorities: Sequence[int], use_tqdm: bool) -> list[RequestOutput]:
        client = self._alive()
        prepared: list[PreparedRequest] = []
        with (interrupts_between_steps() as check_interrupt,
              _progress_bar(len(items), use_tqdm) as advance):
            for item, item_params, priority in zip(items, params, priorities, strict=True):
                check_interrupt()
                self._num_requests += 1
                prepared.append(self._inputs.process(str(self._num_requests), item, item_params,
                                                     priority=priority))
            results = self._run(client, prepared, check_interrupt, advance)
        return [results[p.request_id] for p in prepared]

    def _run(self, client: InprocClient, prepared: list[PreparedRequest],
             check_interrupt: Callable[[], None],
             advance: Callable[[dict[str, RequestOutput]], None]) -> dict[str, RequestOutput]:
        results: dict[str, RequestOutput] = {}
        failures: list[OctavoError] = []

        def sink(output: RequestOutput | OctavoError) -> None:
            if isinstance(output, OctavoError):
                failures.append(output)
            else:
                results[output.request_id] = output

        waiting = prepared[::-1]
        loop = StepLoop(client, self._take)
        try:
            while waiting or client.has_requests:
                check_interrupt()
                self._feed(client, waiting, sink)
                self._step(client, loop)
                if failures:
                    raise failures[0]
                advance(results)
        except BaseException:  # Ctrl-C too: nothing may run on unseen
            self._drop_all(prepared)
            raise
        return results

    def _step(self, client: InprocClient, loop: StepLoop) -> None:
        loop.step()
        aborts, self._aborts = self._aborts, []
        if aborts:
            client.abort(aborts)
            loop.settle()

    def _take(self, outputs: EngineCoreOutputs) -> None:
        self._aborts += self._outputs.process(outputs)
        self._metrics.observe_stats(outputs.stats)
        if outputs.stats is not None:  # other threads may look at them meanwhile
            self._stats = outputs.stats

    def _feed(self, client: InprocClient, waiting: list[PreparedRequest], sink: Any) -> None:
        """Hands over requests while the waiting queue has room; a list may be longer than it."""
        room = self.config.scheduler.max_num_waiting - self._outputs.num_samples
        while waiting and (room >= waiting[-1].params.n or not self._outputs.num_samples):
            request = waiting.pop()
            room -= request.params.n
            self._outputs.add(request, kind="final", sink=sink)
            client.add(request.core_requests)

    def _drop_all(self, prepared: list[PreparedRequest]) -> None:
        self._aborts = []
        core_ids = self._outputs.abort([p.request_id for p in prepared], silent=True)
        if core_ids and self._client is not None:
            try:
                self._client.abort(core_ids)
            except EngineDeadError:
                pass  # nothing runs any more


@contextmanager
def _progress_bar(total: int, wanted: bool) -> Iterator[Any]:
    """Yields a function to call with the results so far."""
    if not (wanted and total and sys.stderr.isatty()):
        yield lambda results: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed(),
               TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Processed prompts", total=total, rate="")
        num_done = tokens = 0

        def advance(results: dict[str, RequestOutput]) -> None:
            nonlocal num_done, tokens
            if len(results) == num_done:
                return
            elapsed = bar.tasks[0].elapsed or 0.0
            # results are kept in the order in which they came: the new ones are last
            for result in itertools.islice(reversed(results.values()), len(results) - num_done):
                tokens += sum(len(c.token_ids) for c in result.outputs)
            num_done = len(results)
            rate = f"{tokens / elapsed:.1f} tok/s" if elapsed else ""
            bar.update(task, completed=len(results), rate=rate)

        yield advance
