"""CoreDriver: steps an engine core through a workload, and keeps what became of every request.

Its clock counts the time that steps take and skips the time in which nothing is there to do, so a
run at a low rate takes no longer than its work, and a driver may stand still while others run.
Requests are token ids, greedy and without end token: their outputs are as long as they say.
"""

import dataclasses
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from octavo.core.messages import EngineCoreRequest, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError


@dataclasses.dataclass(slots=True, frozen=True)
class Arrival:
    """A request that comes when the clock says due_s, and not before the first request of the
    workload has `after_tokens` output tokens."""

    prompt_token_ids: list[int]
    max_tokens: int
    due_s: float = 0.0
    after_tokens: int = 0


@dataclasses.dataclass(slots=True)
class Served:
    """What became of an arrival. due_s, times_s (of each output token) and end_s (when its caller
    has the answer) are on the driver's clock."""

    arrival: Arrival
    due_s: float = math.nan
    token_ids: list[int] = dataclasses.field(default_factory=list)
    times_s: list[float] = dataclasses.field(default_factory=list)
    end_s: float = math.nan

    @property
    def latency_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Between two output tokens."""
        return [b - a for a, b in itertools.pairwise(self.times_s)]

    @property
    def is_complete(self) -> bool:
        return len(self.token_ids) == self.arrival.max_tokens


@dataclasses.dataclass(slots=True, frozen=True)
class StepRecord:
    """One step.

    num_held: requests that hold a place in the batch; num_useful: those among them that are not
    finished. num_rows: sequences that drew a token. num_waiting: requests that are there and hold
    no place. num_tokens, num_prompt_tokens: computed. num_wanted: output tokens for a caller.
    cpu_s: of this process, all threads.
    """

    start_s: float
    seconds: float
    num_held: int
    num_useful: int
    num_rows: int
    num_waiting: int
    num_tokens: int
    num_prompt_tokens: int
    num_wanted: int
    cpu_s: float = 0.0


@dataclasses.dataclass(slots=True, frozen=True)
class StaticBatch:
    """Request-level scheduling: a batch of at most `size` requests is taken when the one before
    it has ended as a whole.

    computes_finished: finished requests stay in the batch and are computed until the longest one
    ends, and all answers are handed out then. Without it they hold their places empty, at no
    cost, and answers are handed out as they are complete.
    """

    size: int
    computes_finished: bool


class CoreDriver:
    """Runs arrivals to their ends. An arms.PacedArm.

    static: how batches are made; None: by the engine's scheduler, in every step. slots: most
    requests handed to the scheduler at once, 0: no bound but its own. check: called before every
    step. A request that fails raises OctavoError.
    """

    def __init__(self, core: EngineCore, arrivals: Sequence[Arrival], *, name: str = "run",
                 static: StaticBatch | None = None, slots: int = 0,
                 check: Callable[[], None] = lambda: None) -> None:
        assert all(a.after_tokens <= arrivals[0].max_tokens for a in arrivals), "never comes"
        self._core = core
        self._static = static
        self._slots = slots
        self._check = check
        self._name = name
        self.served = [Served(arrival) for arrival in arrivals]
        self.steps: list[StepRecord] = []
        self.clock_s = 0.0
        self._to_come = deque(sorted(range(len(arrivals)), key=lambda i: (
            arrivals[i].due_s, arrivals[i].after_tokens)))
        self._waiting: deque[int] = deque()
        self._held: set[int] = set()  # of a static batch, or all that the scheduler knows
        self._open: set[int] = set()  # of those, the ones that are not complete
        self._num_prompt_tokens = core.stats().num_prompt_tokens
        self._num_complete = 0
        self._num_tokens = sum(len(a.prompt_token_ids) + a.max_tokens for a in arrivals)
        self._num_done_tokens = 0

    @property
    def is_done(self) -> bool:
        """Whether every request is complete."""
        return self._num_complete == len(self.served)

    @property
    def is_static(self) -> bool:
        """Whether batches are static."""
        return self._static is not None

    @property
    def share_done(self) -> float:
        """0 to 1, by prompt tokens computed and output tokens that are wanted."""
        return self._num_done_tokens / self._num_tokens

    @property
    def outputs(self) -> list[list[int]]:
        """Token ids in the order of the arrivals."""
        return [one.token_ids for one in self.served]

    def run_for(self, seconds: float) -> None:
        """See arms.Arm. The time counts steps, not skipped idleness."""
        left = seconds
        while left > 0 and not self.is_done:
            left -= self.step()

    def step(self) -> float:
        """One step of the engine, at its time; returns how long it took. Call only before the
        end."""
        self._check()
        if not self._open and not self._waiting:
            upcoming = self.served[self._to_come[0]].arrival
            self.clock_s = max(self.clock_s, upcoming.due_s)
        started, start_s, start_cpu_s = time.perf_counter(), self.clock_s, time.process_time()
        self._arrive()
        held_before = self._admit()
        num_useful = len(self._open)
        outputs = self._core.step()
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - start_cpu_s
        self.clock_s += seconds
        num_rows, num_wanted = 0, 0
        for output in outputs.outputs:
            if output.finish_reason is FinishReason.ERROR:
                raise OctavoError(f"a request failed: {output.error}")
            num_rows += bool(output.new_token_ids)
            num_wanted += self._take(self._index(output.request_id), output.new_token_ids)
        stats = outputs.stats
        assert stats is not None
        num_waiting = len(self._waiting)
        if self._static is None:  # some may be in the scheduler's own waiting queue
            num_waiting += stats.num_waiting
            held_before = num_useful = num_useful - stats.num_waiting
        self.steps.append(StepRecord(
            start_s, seconds, held_before, num_useful, num_rows, num_waiting,
            stats.last_step_tokens, stats.num_prompt_tokens - self._num_prompt_tokens,
            num_wanted, cpu_s))
        self._num_done_tokens += self.steps[-1].num_prompt_tokens + num_wanted
        self._num_prompt_tokens = stats.num_prompt_tokens
        self._end_batch()
        return seconds

    def _arrive(self) -> None:
        progress = len(self.served[0].token_ids)
        while self._to_come:
            index = self._to_come[0]
            arrival = self.served[index].arrival
            if arrival.due_s > self.clock_s or arrival.after_tokens > progress:
                return
            self._to_come.popleft()
            # one tied to progress is there when that is; others were there while a step ran
            self.served[index].due_s = self.clock_s if arrival.after_tokens else arrival.due_s
            self._waiting.append(index)

    def _admit(self) -> int:
        """Hands requests to the core; returns how many hold a place in the next step."""
        if self._static is None:
            room = self._slots - len(self._held) if self._slots else len(self._waiting)
            batch = list(itertools.islice(self._waiting, room))
        elif self._held:
            batch = []
        else:
            batch = list(itertools.islice(self._waiting, self._static.size))
        for _ in batch:
            self._waiting.popleft()
        if batch:
            longest = max(self.served[i].arrival.max_tokens for i in batch)
            padded = self._static is not None and self._static.computes_finished
            self._core.add([self._request(i, longest if padded else 0) for i in batch])
            self._held.update(batch)
            self._open.update(batch)
        return len(self._held)

    def _request(self, index: int, at_least: int) -> EngineCoreRequest:
        arrival = self.served[index].arrival
        most = max(arrival.max_tokens, at_least)
        params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
        return EngineCoreRequest(
            request_id=f"{self._name}-{index}", prompt_token_ids=arrival.prompt_token_ids,
            params=params, eos_token_ids=[], seed=0, max_tokens=most)

    @staticmethod
    def _index(request_id: str) -> int:
        return int(request_id.rpartition("-")[2])

    def _take(self, index: int, token_ids: Sequence[int]) -> int:
        """Keeps the tokens that the request wants; returns how many."""
        one = self.served[index]
        wanted = list(token_ids[:one.arrival.max_tokens - len(one.token_ids)])
        one.token_ids += wanted
        one.times_s += [self.clock_s] * len(wanted)
        if wanted and one.is_complete:
            one.end_s = self.clock_s
            self._open.discard(index)
            self._num_complete += 1
            if self._static is None:
                self._held.discard(index)
        return len(wanted)

    def _end_batch(self) -> None:
        static = self._static
        if static is None or self._open or not self._held:
            return
        if static.computes_finished:
            for index in self._held:
                self.served[index].end_s = self.clock_s
            self._core.abort([f"{self._name}-{index}" for index in self._held])
        self._held.clear()
