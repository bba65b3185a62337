"""EngineArm: an engine core under whatever requests, with a clock and samples of its KV memory.

The clock counts the seconds that the core's steps took, skips those without anything to do and
stands still while other arms run, so arms that take turns (arms.py) are each measured as if alone.
Requests are the caller's: samples of one prompt, turns of a chat that follow each other's answers.
(CoreDriver is for arrivals that are known from the start.) Knows no claim.
"""

import dataclasses
import heapq
import time
from collections.abc import Callable, Sequence

from octavo.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError


@dataclasses.dataclass(slots=True)
class Record:
    """One request. Times are of the arm's clock, in seconds; NaN until they come."""

    request: EngineCoreRequest
    added_s: float
    first_token_s: float = float("nan")
    finished_s: float = float("nan")
    num_cached_tokens: int = 0
    token_ids: list[int] = dataclasses.field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_token_s - self.added_s


@dataclasses.dataclass(slots=True, frozen=True)
class StepSample:
    """One step, and the state behind it. num_tokens: scheduled in it."""

    seconds: float
    num_tokens: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    live_tokens: int
    allocated_slots: int


class EngineArm:
    """A core, what was asked of it and what it did.

    on_finish: called with each finished request, outside of the clock; it may add others.
    after_step: called after each step, outside of the clock.
    """

    def __init__(self, name: str, core: EngineCore, *,
                 on_finish: Callable[[Record], None] = lambda record: None,
                 after_step: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.core = core
        self.clock_s = 0.0
        self.busy_s = 0.0  # of the clock, in steps
        self.cpu_s = 0.0
        self.samples: list[StepSample] = []
        self.records: dict[str, Record] = {}
        self.on_finish = on_finish
        self.after_step = after_step
        self._to_come: list[tuple[float, int, EngineCoreRequest]] = []  # a heap
        self._num_to_come = 0

    @property
    def is_done(self) -> bool:
        """Nothing is left to run or to come."""
        return not self.core.has_requests and not self._to_come

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Token ids by request id."""
        return {name: record.token_ids for name, record in self.records.items()}

    @property
    def num_output_tokens(self) -> int:
        """Drawn so far."""
        return sum(len(record.token_ids) for record in self.records.values())

    @property
    def rate(self) -> float:
        """Output tokens a second in which the engine had something to do."""
        return self.num_output_tokens / self.busy_s

    def add(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Queues requests, at once."""
        for request in requests:
            self.records[request.request_id] = Record(request, self.clock_s)
        self.core.add(requests)

    def add_later(self, request: EngineCoreRequest, delay_s: float) -> None:
        """Queues a request when the clock is delay_s further, between two steps. A clock with
        nothing to do skips to it. Its time to the first token counts from then."""
        heapq.heappush(self._to_come, (self.clock_s + delay_s, self._num_to_come, request))
        self._num_to_come += 1

    def _arrive(self) -> None:
        if not self.core.has_requests and self._to_come:
            self.clock_s = max(self.clock_s, self._to_come[0][0])
        while self._to_come and self._to_come[0][0] <= self.clock_s:
            due_s, _, request = heapq.heappop(self._to_come)
            self.records[request.request_id] = Record(request, due_s)
            self.core.add([request])

    def run_for(self, seconds: float) -> None:
        """Steps until they took that long or nothing is left."""
        until = self.busy_s + seconds
        while self.busy_s < until and not self.is_done:
            self.step()

    def run(self) -> None:
        """Steps until nothing is left."""
        while not self.is_done:
            self.step()

    def step(self) -> None:
        """One step. Raises OctavoError when a request failed."""
        self._arrive()
        cpu, started = time.process_time(), time.perf_counter()
        outputs = self.core.step()
        seconds = time.perf_counter() - started
        self.cpu_s += time.process_time() - cpu
        self.clock_s += seconds
        self.busy_s += seconds
        stats = outputs.stats
        assert stats is not None
        self.samples.append(StepSample(
            seconds, stats.last_step_tokens, stats.num_running, stats.num_waiting,
            stats.num_free_blocks, stats.live_tokens, stats.allocated_slots))
        for output in outputs.outputs:
            self._take(output)
        self.after_step()

    def _take(self, output: EngineCoreOutput) -> None:
        record = self.records[output.request_id]
        if output.new_token_ids and not record.token_ids:
            record.first_token_s = self.clock_s
            record.num_cached_tokens = output.num_cached_tokens or 0
        record.token_ids += output.new_token_ids
        if output.finish_reason is None:
            return
        if output.finish_reason is FinishReason.ERROR:
            raise OctavoError(f"a request of the {self.name} arm failed: {output.error}")
        record.finished_s = self.clock_s
        self.on_finish(record)


def greedy_request(request_id: str, prompt: Sequence[int], max_tokens: int) -> EngineCoreRequest:
    """Greedy, of exactly max_tokens tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return EngineCoreRequest(request_id=request_id, prompt_token_ids=list(prompt), params=params,
                             eos_token_ids=[], seed=0, max_tokens=max_tokens)


def same_outputs(arms: Sequence[EngineArm]) -> bool:
    """Whether every arm gave the same token ids to the same requests."""
    return all(arm.outputs == arms[0].outputs for arm in arms)
