"""Scheduler: who runs in the next step, with how many tokens, and what the step's result means.

One idea, no prefill or decode phase: each step, every request's num_computed_tokens chases its
num_tokens under one token budget. Fresh prompts, chunks, prefix hits, resumed requests and decodes
are all that one loop. Integers only: no text, no arrays, no worker.

Order. Requests are served by rank: (priority, arrival), arrival alone under "fcfs". Running ones
come first, in rank order; then waiting ones, in rank order. A waiting request that does not fit
the free blocks stops the admissions of the step (head-of-line blocking, for memory only: children
waiting for their fork are not in the queue), so no request is overtaken for ever.

Why nobody waits for ever (given a rank order that is never overtaken: "fcfs", or one priority).
Take the first unfinished request r by rank.
- Running: it is first in the running list. Its blocks come from the free list, then from forks
  that merely wait, then from victims, which are taken from the end of the list; so r is never the
  victim while another request runs. Alone, it holds all blocks there are before it can fail, and
  stop.py ends a request that outgrew the pool. So r gets a token in every step, and it ends.
- Waiting: it is the head of the queue, so nothing is admitted before it. What runs ends (by the
  same argument for the first of those), and with nothing running r is admitted: waiting forks give
  their blocks back, and add_request refused what an empty pool cannot hold.
A preempted request comes back only when all its tokens fit on top of the reserve for those that
run (policy.reserved_blocks), so it computes at least one new token before it can lose its blocks
again: no thrash without progress. In a step that preempted, nothing is admitted.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from octavo.config import SchedulerSection
from octavo.core.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerStats,
)
from octavo.core.request import Request, RequestStatus
from octavo.core.step import (
    EMPTY_TRANSFER_PLAN,
    BlockCopy,
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TransferPlan,
)
from octavo.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelOutputError,
    QueueFullError,
    RequestTooLargeError,
)
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler import policy
from octavo.scheduler.ahead import PreparedStep, prepare
from octavo.scheduler.queue import RunningList, WaitingQueue
from octavo.scheduler.stop import check_stop


@dataclasses.dataclass(slots=True)
class _Step:
    """The step being scheduled."""

    token_budget: int
    num_scheduled_tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    new_requests: list[NewRequestData] = dataclasses.field(default_factory=list)
    cached_requests: list[CachedRequestData] = dataclasses.field(default_factory=list)
    copies: list[BlockCopy] = dataclasses.field(default_factory=list)
    preempted: bool = False

    def take(self, request: Request, num_tokens: int) -> None:
        self.num_scheduled_tokens[request.request_id] = num_tokens
        self.token_budget -= num_tokens


class Scheduler:
    """Continuous batching over paged KV. One step in flight: schedule, run, update_from_output.

    Raises ConfigError for limits that cannot work. clock: seconds (a simulator's is virtual).
    """

    def __init__(
        self,
        config: SchedulerSection,
        kv_cache_manager: KVCacheManager,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        policy.verify_limits(config)
        self._config = config
        self._kv = kv_cache_manager
        self._clock = clock
        # Every running request can get one token a step, so no decode is starved by the budget.
        self._max_running = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._requests: dict[str, Request] = {}  # all that are not finished
        self._waiting = WaitingQueue(config.policy)
        self._running = RunningList(config.policy)
        # Children (samples 1..) of a parent (sample 0) whose prompt is not computed yet.
        self._parked: dict[str, list[Request]] = {}
        # Waiting children that already share their parent's prompt blocks, oldest fork first.
        self._forked: dict[str, Request] = {}
        self._finished_request_ids: list[str] = []  # who left the worker since the last step
        self._in_flight: SchedulerOutput | None = None
        self._prepared: PreparedStep | None = None  # what may follow the step in flight
        self._num_arrivals = 0
        self._stats = SchedulerStats(num_blocks=kv_cache_manager.num_blocks)
        self._step_started_s = 0.0

    # ---- requests come and go

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queue a request.

        Raises InvalidRequestError (id in use, empty prompt, fork of another prompt),
        ContextLengthError, RequestTooLargeError (could not run even in an empty KV cache) and
        QueueFullError. Children of a sample 0 that waits are exempt from the bound, so that a group
        is taken or refused as a whole.
        """
        parent = self._fork_parent(message)
        self._verify(message, parent)
        request = Request.from_message(
            message, arrival_index=self._num_arrivals, now_s=self._clock()
        )
        self._num_arrivals += 1
        self._requests[request.request_id] = request
        if parent is not None:
            self._parked.setdefault(parent.request_id, []).append(request)
        else:
            self._waiting.push(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Forget these requests, at any moment; unknown ids are ignored. They send no more news.

        One that is part of the step in flight leaves when the step is over: its blocks are being
        written, and others of the step may share them.
        """
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if self._in_flight is not None and request_id in self._in_flight.num_scheduled_tokens:
                request.abort_requested = True
            else:
                self._finish(request, FinishReason.ABORT)

    def has_requests(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def reset_prefix_cache(self) -> int:
        """Drop every cached block that no request holds; returns how many."""
        return self._kv.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        """Counters and gauges; a fresh struct."""
        num_kv_tokens = [(r, r.num_computed_tokens) for r in self._running]
        num_kv_tokens += [(r, r.num_prompt_tokens) for r in self._forked.values()]
        live_tokens, allocated_slots = self._kv.usage(num_kv_tokens)
        return msgspec.structs.replace(
            self._stats,
            num_waiting=self._num_waiting,
            num_running=len(self._running),
            num_free_blocks=self._kv.num_free_blocks,
            num_cached_blocks=self._kv.num_cached_blocks,
            live_tokens=live_tokens,
            allocated_slots=allocated_slots,
            num_copies_on_write=self._kv.num_copies_on_write,
        )

    # views, for those who watch: not to be changed

    @property
    def unfinished_requests(self) -> Mapping[str, Request]:
        """All requests, in order of arrival."""
        return self._requests

    @property
    def running_requests(self) -> RunningList:
        return self._running

    @property
    def num_finished(self) -> int:
        """Requests that have left since the start, aborted ones included."""
        return self._num_arrivals - len(self._requests)

    @property
    def kv_cache(self) -> KVCacheManager:
        return self._kv

    @property
    def _num_waiting(self) -> int:
        return len(self._requests) - len(self._running)

    def _fork_parent(self, message: EngineCoreRequest) -> Request | None:
        """The sample 0 to wait for; None if it is gone or its prompt is computed already."""
        parent = self._requests.get(message.fork_of) if message.fork_of is not None else None
        if parent is None or parent.num_computed_tokens >= parent.num_prompt_tokens:
            return None
        if parent.abort_requested or parent.status == RequestStatus.PREEMPTED:
            return None
        return parent

    def _verify(self, message: EngineCoreRequest, parent: Request | None) -> None:
        num_prompt_tokens = len(message.prompt_token_ids)
        if message.request_id in self._requests:
            raise InvalidRequestError(
                f"request_id is {message.request_id!r}: it is in use, give another one",
                param="request_id",
            )
        if num_prompt_tokens == 0:
            raise InvalidRequestError(
                "the prompt is empty: give at least one token", param="prompt"
            )
        # a prompt may fill the context and the cache: the token drawn behind it is never computed
        if num_prompt_tokens > self._config.max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens, but the context length is "
                f"{self._config.max_model_len} tokens: shorten it",
                param="prompt",
            )
        if num_prompt_tokens > self._kv.capacity_tokens:
            raise RequestTooLargeError(
                f"the prompt has {num_prompt_tokens} tokens, but the whole KV cache holds "
                f"{self._kv.capacity_tokens}: shorten it, or start with a bigger KV cache",
                param="prompt",
            )
        if parent is not None:
            if parent.token_ids[: parent.num_prompt_tokens] != message.prompt_token_ids:
                raise InvalidRequestError(
                    f"fork_of is {message.fork_of!r}: its prompt differs, give the same one",
                    param="fork_of",
                )
        elif self._num_waiting >= self._config.max_num_waiting:
            raise QueueFullError(
                f"{self._num_waiting} requests wait already, and {self._config.max_num_waiting} "
                "may: try again later"
            )

    # ---- one step

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Its result must come to update_from_output before the next call.

        An output without scheduled tokens needs neither: it says that nothing can run now, and who
        left is told with the next step that runs something.
        """
        assert self._in_flight is None, "the last step has not come back"
        self._step_started_s = self._clock()
        self._kv.begin_step(self._step_started_s)
        step = _Step(token_budget=self._config.max_num_batched_tokens)
        if not self._schedule_prepared(step):
            self._schedule_running(step)
            if not step.preempted:
                self._schedule_waiting(step)
        if not step.num_scheduled_tokens:
            return SchedulerOutput(step_id=self._stats.num_steps, num_scheduled_tokens={})
        self._stats.num_steps += 1
        self._stats.last_step_tokens = sum(step.num_scheduled_tokens.values())
        output = SchedulerOutput(
            step_id=self._stats.num_steps,
            num_scheduled_tokens=step.num_scheduled_tokens,
            new_requests=tuple(step.new_requests),
            cached_requests=tuple(step.cached_requests),
            finished_request_ids=tuple(self._finished_request_ids),
            transfer_plan=TransferPlan(tuple(step.copies)) if step.copies else EMPTY_TRANSFER_PLAN,
        )
        self._finished_request_ids = []
        self._in_flight = output
        return output

    def schedule_ahead(self) -> None:
        """Prepare the step behind the one in flight, where it can be known already (ahead.py).

        Changes nothing else and may run in another thread while the step runs; nobody else may
        call meanwhile. schedule() takes what is prepared, or decides anew where something came
        between: it returns the same either way.
        """
        assert self._in_flight is not None, "no step is in flight"
        if self._may_admit or self._parked:
            return
        prepared = prepare(self._running, self._in_flight, block_size=self._kv.block_size)
        if prepared is not None and prepared.num_new_blocks <= self._kv.num_free_blocks:
            self._prepared = prepared

    @property
    def has_prepared(self) -> bool:
        """Whether the next step is prepared and has somebody to run."""
        return self._prepared is not None and bool(self._running)

    @property
    def _may_admit(self) -> bool:
        return bool(self._waiting) and len(self._running) < self._max_running

    def _schedule_prepared(self, step: _Step) -> bool:
        """Run the prepared step, without those who have left; False if it does not hold."""
        prepared, self._prepared = self._prepared, None
        if (
            prepared is None
            or not self._running
            or self._may_admit
            or self._forked  # a parent's next write may have to copy
            or prepared.num_new_blocks > self._kv.num_free_blocks
        ):
            return False
        rows, step.num_scheduled_tokens = prepared.rows, prepared.num_scheduled_tokens
        if len(rows) != len(self._running):
            rows = [row for row in rows if row[0].status == RequestStatus.RUNNING]
            step.num_scheduled_tokens = {row[0].request_id: 1 for row in rows}
        assert len(rows) == len(self._running), "somebody joined a prepared step"
        for request, data in rows:
            assert len(request.token_ids) == request.num_computed_tokens + 1
            if data is None:
                new_block_ids = self._kv.allocate_slots(request, 1, copies=step.copies)
                assert new_block_ids is not None
                data = self._cached_request_data(request, new_block_ids)
            step.cached_requests.append(data)
        step.token_budget -= len(rows)
        self._stats.num_steps_scheduled_ahead += 1
        return True

    def _schedule_running(self, step: _Step) -> None:
        # A prefill leaves one token for each decode that ranks behind it: an old prompt, come back
        # after preemption, must not stall everybody else's stream.
        num_decodes_behind = sum(
            1 for r in self._running if r.num_tokens_to_compute - r.num_computed_tokens == 1
        )
        step.token_budget = policy.token_budget(self._config, num_decodes_behind)
        index = 0
        while index < len(self._running):
            request = self._running[index]
            index += 1
            num_remaining = request.num_tokens_to_compute - request.num_computed_tokens
            computed_blocks = []
            if num_remaining == 1:
                num_decodes_behind -= 1
                num_new_tokens = 1
            else:
                # Others may have computed the continuation of this prompt since it was admitted.
                computed_blocks = self._kv.get_computed_blocks(request)
                num_remaining -= len(computed_blocks) * self._kv.block_size
                num_new_tokens = policy.chunk_size(
                    num_remaining,
                    token_budget=step.token_budget - num_decodes_behind,
                    config=self._config,
                    is_prompt=request.num_computed_tokens < request.num_prompt_tokens,
                )
            if num_new_tokens == 0:
                continue
            while True:
                new_block_ids = self._kv.allocate_slots(
                    request, num_new_tokens, copies=step.copies, computed_blocks=computed_blocks
                )
                if new_block_ids is not None:
                    break
                if not self._make_room(request, step):
                    return  # the request was last in rank and had to leave itself
            self._count_hits(request, len(computed_blocks))
            self._count_prompt_chunk(request, num_new_tokens)
            step.take(request, num_new_tokens)
            step.cached_requests.append(self._cached_request_data(request, new_block_ids))

    def _make_room(self, request: Request, step: _Step) -> bool:
        """Free some blocks for a running request; False if that cost the request its own.

        Forks that only wait give way before anything that runs. Victims rank behind every request
        this step has scheduled so far, so nothing scheduled is ever taken back.
        """
        if self._forked:
            self._release_fork()
            return True
        victim = policy.preemption_victim(self._running)
        self._preempt(victim)
        step.preempted = True
        return victim is not request

    def _schedule_waiting(self, step: _Step) -> None:
        if not self._waiting:
            return
        reserved = self._reserved_blocks(self._running)
        while self._waiting and step.token_budget > 0 and len(self._running) < self._max_running:
            request = self._waiting.peek()
            computed_blocks = self._kv.get_computed_blocks(request)
            num_known = request.num_tokens_to_compute
            needed = self._kv.num_blocks_needed(request, num_known, computed_blocks)
            if needed + reserved > self._kv.num_free_blocks:
                if self._running or not self._forked:
                    assert self._running, f"{request.request_id} does not fit an empty pool"
                    return
                self._release_fork()  # nothing runs: only waiting forks can hold the blocks
                continue
            num_cached = len(computed_blocks) * self._kv.block_size
            num_new_tokens = policy.chunk_size(
                num_known - request.num_computed_tokens - num_cached,
                token_budget=step.token_budget,
                config=self._config,
            )
            if num_new_tokens == 0:
                return  # not chunkable: it is first in line when the budget is there
            self._waiting.pop()
            new_block_ids = self._kv.allocate_slots(
                request, num_new_tokens, copies=step.copies, computed_blocks=computed_blocks
            )
            assert new_block_ids is not None
            self._admit(request, num_cached=num_cached, num_new_tokens=num_new_tokens)
            reserved += self._reserved_blocks([request])
            step.take(request, num_new_tokens)
            step.new_requests.append(self._new_request_data(request))

    def _admit(self, request: Request, *, num_cached: int, num_new_tokens: int) -> None:
        self._forked.pop(request.request_id, None)
        request.status = RequestStatus.RUNNING
        self._running.add(request)
        if request.first_scheduled_s is None:
            request.first_scheduled_s = self._step_started_s
        if request.num_cached_tokens < 0:  # a resumed request's second look is no second query
            request.num_cached_tokens = 0
            if request.reads_prefix_cache and self._kv.enable_prefix_caching:
                self._stats.prefix_cache_queries += request.num_prompt_tokens
        self._count_hits(request, num_cached // self._kv.block_size)
        self._count_prompt_chunk(request, num_new_tokens)

    def _cached_request_data(
        self, request: Request, new_block_ids: list[int]
    ) -> CachedRequestData:
        untold, request.untold_token_ids = request.untold_token_ids, []
        return CachedRequestData(
            request.request_id,
            request.num_computed_tokens,
            new_block_ids,
            self._kv.take_replaced(request),
            untold,
            request.num_unscored_tokens,
        )

    def _new_request_data(self, request: Request) -> NewRequestData:
        request.untold_token_ids = []
        return NewRequestData(
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=request.num_computed_tokens,
            block_ids=self._kv.block_ids(request),
            params=request.params,
            seed=request.seed,
            sample_index=request.sample_index,
            eos_token_ids=request.eos_token_ids,
            bad_words_token_ids=request.bad_words_token_ids,
            num_unscored_tokens=request.num_unscored_tokens,
        )

    def _reserved_blocks(self, requests: Iterable[Request]) -> int:
        return policy.reserved_blocks(
            requests,
            num_blocks_held=self._kv.num_blocks_held,
            block_size=self._kv.block_size,
            max_model_len=self._config.max_model_len,
        )

    def _count_hits(self, request: Request, num_blocks: int) -> None:
        if num_blocks and request.num_preemptions == 0:
            num_tokens = num_blocks * self._kv.block_size
            request.num_cached_tokens += num_tokens
            self._stats.prefix_cache_hits += num_tokens

    def _count_prompt_chunk(self, request: Request, num_new_tokens: int) -> None:
        num_prompt_left = request.num_prompt_tokens - request.num_computed_tokens
        if num_prompt_left <= 0:
            return
        self._stats.num_prompt_tokens += min(num_new_tokens, num_prompt_left)
        if num_new_tokens < num_prompt_left and not request.is_chunked:
            request.is_chunked = True
            self._stats.num_chunked_prefills += 1

    # ---- the step comes back

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput
    ) -> EngineCoreOutputs:
        """Take the step's tokens, end who is done, and say what is new (`stats` left out).

        Order matters: first every block of the step is committed, then prompts are forked (before
        their first output token is written, and before a parent that ends frees its blocks).
        """
        outputs: list[EngineCoreOutput] = []
        if not scheduler_output.num_scheduled_tokens:
            return EngineCoreOutputs(outputs=outputs)
        assert self._in_flight is scheduler_output, "a step came back that is not in flight"
        assert runner_output.step_id == scheduler_output.step_id, "result of another step"
        self._in_flight = None
        self._stats.num_native_calls += runner_output.num_native_calls
        self._stats.num_merged_rows += runner_output.num_merged_rows
        requests = [self._requests[i] for i in scheduler_output.num_scheduled_tokens]
        for request in requests:
            num_tokens = scheduler_output.num_scheduled_tokens[request.request_id]
            request.num_computed_tokens += num_tokens
            self._kv.commit(request)
        self._kv.end_step()
        for request in requests:
            if request.request_id in self._parked:
                self._fork_children(request)
            if request.abort_requested:
                self._finish(request, FinishReason.ABORT)
                continue
            output = self._take_tokens(request, runner_output)
            if output is not None:
                outputs.append(output)
        self._stats.step_time_s = self._clock() - self._step_started_s
        return EngineCoreOutputs(outputs=outputs)

    def _fork_children(self, parent: Request) -> None:
        if parent.num_computed_tokens < parent.num_prompt_tokens:
            return
        for child in self._parked.pop(parent.request_id):
            self._kv.fork(parent, child)
            child.num_cached_tokens = max(parent.num_cached_tokens, 0)
            self._forked[child.request_id] = child
            self._waiting.push(child)

    def _take_tokens(
        self, request: Request, runner_output: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        request_id = request.request_id
        num_tokens = len(request.token_ids)
        first_token = num_tokens == request.num_prompt_tokens
        if first_token and request.params.prompt_logprobs is not None:
            request.prompt_logprobs += runner_output.prompt_logprobs.get(request_id, ())
        if request_id in runner_output.failed:
            self._finish(request, FinishReason.ERROR)
            # its own bans left nothing, unless the model is to blame
            is_broken = request_id in runner_output.broken
            return EngineCoreOutput(
                request_id=request_id,
                new_token_ids=[],
                finish_reason=FinishReason.ERROR,
                error=runner_output.failed[request_id],
                error_type=(ModelOutputError if is_broken else InvalidRequestError).__name__,
            )
        sampled = runner_output.sampled_token_ids.get(request_id, ())
        samples = request.num_computed_tokens == num_tokens
        assert samples == bool(sampled), f"{request_id}: sampled {sampled}, due: {samples}"
        # tokens forced earlier that a row of this step scored
        first_unscored = num_tokens - request.num_unscored_tokens
        new_token_ids = request.token_ids[first_unscored : request.num_computed_tokens + 1]
        request.num_unscored_tokens -= len(new_token_ids)
        if samples:
            new_token_ids += self._append_tokens(request, runner_output)
        if not new_token_ids:
            return None
        output = EngineCoreOutput(request_id=request_id, new_token_ids=new_token_ids)
        if request.pending_stop is not None and request.num_unscored_tokens == 0:
            output.finish_reason, output.stop_reason = request.pending_stop
        self._stats.num_generation_tokens += len(new_token_ids)
        if request.params.logprobs is not None:
            output.logprobs = runner_output.logprobs[request_id][: len(new_token_ids)]
        if first_token:
            self._first_news(request, output)
        if output.finish_reason is not None:
            self._finish(request, output.finish_reason)
        return output

    def _append_tokens(self, request: Request, runner_output: ModelRunnerOutput) -> list[int]:
        """Takes the tokens drawn and those forced behind them, up to one that ends the request.

        Returns those that are news: forced ones of a request with logprobs wait for these, and so
        does its end (pending_stop).
        """
        request_id = request.request_id
        sampled = runner_output.sampled_token_ids[request_id]
        forced = runner_output.forced_token_ids.get(request_id, ())
        taken: list[int] = []
        stop = None
        for token_id in (*sampled, *forced):
            request.token_ids.append(token_id)
            taken.append(token_id)
            stop = check_stop(
                request,
                max_model_len=self._config.max_model_len,
                kv_capacity_tokens=self._kv.capacity_tokens,
            )
            if stop is not None:
                break
        all_taken = len(taken) == len(sampled) + len(forced)
        if request_id in runner_output.completed and all_taken and (
            stop is None or stop[0] != FinishReason.STOP
        ):
            stop = FinishReason.STOP, None  # complete, even where the length ends, too
        request.pending_stop = stop
        untold = taken[len(sampled) :]
        if not untold:
            return taken
        request.untold_token_ids += untold
        self._stats.num_jump_forward_tokens += len(untold)
        if request.params.logprobs is None:
            return taken
        request.num_unscored_tokens = len(untold)
        return taken[: len(sampled)]

    def _first_news(self, request: Request, output: EngineCoreOutput) -> None:
        """What goes out once, with the first token."""
        output.num_cached_tokens = request.num_cached_tokens
        assert request.first_scheduled_s is not None
        output.queued_s = max(request.first_scheduled_s - request.arrival_time_s, 0.0)
        output.prefill_s = self._clock() - request.first_scheduled_s
        # A forked child computed only the last prompt row: its sample 0 delivers these.
        if request.params.prompt_logprobs is not None and (
            len(request.prompt_logprobs) == request.num_prompt_tokens - 1
        ):
            output.prompt_logprobs = request.prompt_logprobs
        request.prompt_logprobs = []

    # ---- leaving

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """The request ends, wherever it is."""
        if request.status == RequestStatus.RUNNING:
            self._running.remove(request)
            self._finished_request_ids.append(request.request_id)
        elif request.request_id in self._waiting:
            self._waiting.remove(request)
            self._forked.pop(request.request_id, None)
        else:
            self._unpark(request)
        self._kv.free(request)
        self._free_children(request)
        request.status = RequestStatus.of_finish_reason(reason)
        del self._requests[request.request_id]

    def preempt_latest(self) -> bool:
        """Preempts the running request that would be the victim, between steps.

        For tests and simulations of memory pressure. False when fewer than two requests run.
        """
        if len(self._running) < 2:
            return False
        self._preempt(policy.preemption_victim(self._running))
        return True

    def _preempt(self, request: Request) -> None:
        """Take a running request's blocks (their content stays cached) and let it wait again."""
        self._running.remove(request)
        self._finished_request_ids.append(request.request_id)
        self._kv.free(request)
        self._free_children(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.prompt_logprobs = []
        self._stats.num_preemptions += 1
        self._waiting.push(request)

    def _free_children(self, parent: Request) -> None:
        """The parent left before its fork: its children are requests like any other."""
        for child in self._parked.pop(parent.request_id, ()):
            self._waiting.push(child)

    def _unpark(self, child: Request) -> None:
        assert child.fork_of is not None
        siblings = self._parked[child.fork_of]
        siblings.remove(child)
        if not siblings:
            del self._parked[child.fork_of]

    def _release_fork(self) -> None:
        """The youngest waiting fork gives up its shared blocks and starts from nothing."""
        _, child = self._forked.popitem()
        self._kv.free(child)
        child.num_computed_tokens = 0
        child.num_cached_tokens = -1
