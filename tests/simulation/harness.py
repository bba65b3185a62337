"""A scheduler, a FakeExecutor and what comes out of them: shared by the simulation tests."""

import random

from octavo.config import CacheSection, SchedulerSection
from octavo.core.messages import EngineCoreRequest, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import SchedulerOutput
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor, lone_output
from octavo.testing.invariants import check_scheduler

EOS = 0


class Harness:
    """Runs steps, checks everything after each, and compares finished outputs with lone runs."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 4,
        vocab_size: int = 20,
        enable_prefix_caching: bool = True,
        check: bool = True,
        ahead: bool = False,
        scheduler: SchedulerSection,
    ) -> None:
        self.vocab_size = vocab_size
        self.config = scheduler
        self.check = check
        self.ahead = ahead  # the next step is prepared while one runs
        self.steps: list[SchedulerOutput] = []
        self.kv = KVCacheManager(
            CacheSection(
                block_size=block_size,
                num_blocks=num_blocks,
                enable_prefix_caching=enable_prefix_caching,
            ),
            b"toy",
        )
        self.now_s = 0.0
        self.scheduler = Scheduler(scheduler, self.kv, clock=self._clock)
        self.executor = FakeExecutor(
            num_blocks=num_blocks, block_size=block_size, vocab_size=vocab_size, check_kv=check
        )
        self.requests: dict[str, EngineCoreRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finish_reasons: dict[str, FinishReason] = {}
        self.prompt_logprobs: dict[str, int] = {}
        self.num_cached: dict[str, int] = {}
        self.in_flight: SchedulerOutput | None = None
        self.num_steps = 0

    def _clock(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def add(self, request: EngineCoreRequest) -> None:
        self.scheduler.add_request(request)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []

    def abort(self, request_id: str) -> None:
        self.scheduler.abort_requests([request_id])
        self.requests.pop(request_id, None)

    def begin_step(self) -> SchedulerOutput:
        had_requests = self.scheduler.has_requests()
        self.in_flight = self.scheduler.schedule()
        runs = bool(self.in_flight.num_scheduled_tokens)
        assert runs == had_requests, "requests wait, but nothing runs"
        return self.in_flight

    @property
    def prepares_early(self) -> bool:
        """Whether the next step is prepared before what happens in flight: in half of the steps."""
        return (self.ahead and self.num_steps % 2 == 0 and self.in_flight is not None
                and bool(self.in_flight.num_scheduled_tokens))

    def end_step(self) -> None:
        step, self.in_flight = self.in_flight, None
        assert step is not None
        if not step.num_scheduled_tokens:
            return
        self.num_steps += 1
        self.steps.append(step)
        if self.ahead and self.num_steps % 2 == 0:  # the others: before the events in flight
            self.scheduler.schedule_ahead()
        assert step.total_num_scheduled_tokens <= self.config.max_num_batched_tokens
        result = self.executor.collect(self.executor.submit(step))
        for output in self.scheduler.update_from_output(step, result).outputs:
            request = self.requests.get(output.request_id)
            assert request is not None, f"news of {output.request_id}, which is gone"
            tokens = self.outputs[output.request_id]
            if output.error is not None:
                assert output.request_id in self.executor.failing
                assert output.finish_reason == FinishReason.ERROR
                self.finish_reasons[output.request_id] = FinishReason.ERROR
                del self.requests[output.request_id]
                continue
            first = not tokens
            assert first == (output.num_cached_tokens is not None)
            if first:
                assert output.num_cached_tokens is not None
                self.num_cached[output.request_id] = output.num_cached_tokens
            tokens += output.new_token_ids
            if output.prompt_logprobs is not None:
                scored = [entry.token_id for entry in output.prompt_logprobs]
                assert first and scored == request.prompt_token_ids[1:]
                self.prompt_logprobs[output.request_id] = len(scored)
            elif first and request.params.prompt_logprobs is not None:
                assert request.fork_of is not None, "prompt logprobs are lost"
            if request.params.logprobs is not None:
                assert output.logprobs is not None
                assert [e.token_id for e in output.logprobs] == output.new_token_ids
            if output.finish_reason is not None:
                self._check_finished(request, output.finish_reason)
        if self.check:
            check_scheduler(self.scheduler)

    def step(self) -> SchedulerOutput:
        step = self.begin_step()
        self.end_step()
        return step

    def run(self, max_steps: int = 100_000) -> None:
        """Until nobody is left."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def _check_finished(self, request: EngineCoreRequest, reason: FinishReason) -> None:
        request_id = request.request_id
        self.finish_reasons[request_id] = reason
        del self.requests[request_id]
        expected = lone_output(
            request,
            vocab_size=self.vocab_size,
            max_model_len=self.config.max_model_len,
            capacity_tokens=self.kv.capacity_tokens,
        )
        assert self.outputs[request_id] == expected, f"{request_id} depends on its neighbours"
        stopped = expected[-1] in (*request.eos_token_ids, *(request.params.stop_token_ids or ()))
        if not (stopped and len(expected) >= request.params.min_tokens):
            assert reason == FinishReason.LENGTH


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    sample_index: int = 0,
    fork_of: str | None = None,
    priority: int = 0,
    eos: bool = True,
    params: SamplingParams | None = None,
) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=params or SamplingParams(temperature=1.0),
        eos_token_ids=[EOS] if eos else [],
        seed=7,
        max_tokens=max_tokens,
        sample_index=sample_index,
        fork_of=fork_of,
        priority=priority,
    )


def random_prompt(rng: random.Random, length: int, *, vocab_size: int = 20) -> list[int]:
    return [rng.randrange(1, vocab_size) for _ in range(length)]
