"""EngineCore: the loop body. Scheduler decides, executor computes, scheduler learns.

Receives its collaborators. Knows no model, no text, no process and no socket; clients
(core_client.py, core_process.py) call step() and carry the outputs.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from octavo.core.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerStats,
)
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.engine.live_watch import LiveSource, LiveWatch, NoWatch
from octavo.engine.side_thread import NoSideThread, SideThread
from octavo.errors import EngineDeadError, OctavoError
from octavo.executor.seam import Executor
from octavo.grammar.manager import GrammarManager, no_grammar

logger = logging.getLogger(__name__)

# a scheduler that has requests but schedules nothing this often is broken, not waiting
MAX_IDLE_STEPS = 1000
# with nothing to run, how long a step waits for a grammar; new messages wait as long
_GRAMMAR_WAIT_S = 0.005


class SchedulerLike(LiveSource, Protocol):
    """What the core needs of the scheduler (octavo/scheduler/scheduler.py)."""

    def add_request(self, request: EngineCoreRequest) -> None: ...
    def abort_requests(self, request_ids: Sequence[str]) -> object: ...
    def schedule(self) -> SchedulerOutput: ...
    def schedule_ahead(self) -> None: ...
    def update_from_output(
        self, so: SchedulerOutput, mro: ModelRunnerOutput
    ) -> EngineCoreOutputs: ...
    def has_requests(self) -> bool: ...
    @property
    def has_prepared(self) -> bool: ...
    def reset_prefix_cache(self) -> object: ...


class EngineCore:
    """One engine. One caller at a time.

    After a step has failed, the core is dead: `dead` says why, its requests are gone, and every
    further call raises it. `live` has the events for whoever watches (see watch()).

    With async_scheduling the step behind the one that runs is scheduled meanwhile, where it can be
    known, in a thread of the core's own; what a step says and does is the same.
    """

    def __init__(self, scheduler: SchedulerLike, executor: Executor,
                 grammar: GrammarManager | None = None, *, async_scheduling: bool = False) -> None:
        self._side = SideThread() if async_scheduling else NoSideThread()
        self._scheduler = scheduler
        self._executor = executor
        self._grammar = no_grammar() if grammar is None else grammar
        self._request_ids: set[str] = set()
        self._refused: list[EngineCoreOutput] = []
        self._step_time_s = 0.0
        self._idle_steps = 0
        self.dead: EngineDeadError | None = None
        self.live: LiveWatch | NoWatch = NoWatch()

    def add(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Queues requests; those with a grammar as soon as it is compiled. One that is refused
        ends with an error in a later step's outputs; when sample 0 of a group is refused, so are
        the samples forked from it."""
        self._raise_if_dead()
        ready: list[tuple[EngineCoreRequest, OctavoError | None]] = []
        for request in requests:
            if request.params.structured_outputs is None:
                ready.append((request, None))
            else:
                self._request_ids.add(request.request_id)
                self._grammar.add(request)
        self._queue(ready)

    def _queue(self, requests: Sequence[tuple[EngineCoreRequest, OctavoError | None]]) -> None:
        self.live.touch()
        refused: dict[str, OctavoError] = {}
        for request, error in requests:
            error = error or refused.get(request.fork_of or "")
            if error is None:
                try:
                    self._scheduler.add_request(request)
                except OctavoError as raised:
                    error = raised
            if error is None:
                self._request_ids.add(request.request_id)
                continue
            self._forget(request.request_id)
            refused[request.request_id] = error
            self._refused.append(EngineCoreOutput(
                request_id=request.request_id, new_token_ids=[],
                finish_reason=FinishReason.ERROR, error=error.message,
                error_type=type(error).__name__,
            ))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forgets requests. Unknown ids are ignored."""
        self._raise_if_dead()
        known = [r for r in request_ids if r in self._request_ids]
        if known:
            self._scheduler.abort_requests(known)
            self.live.touch()
            self._forget(*known)

    def _forget(self, *request_ids: str) -> None:
        self._request_ids.difference_update(request_ids)
        self._grammar.remove(request_ids)

    @property
    def has_requests(self) -> bool:
        """Whether step() has something to do."""
        return (bool(self._refused) or self._grammar.has_pending
                or self._scheduler.has_requests())

    @property
    def num_requests(self) -> int:
        """Requests added and neither finished nor aborted."""
        return len(self._request_ids)

    @property
    def is_prepared(self) -> bool:
        """Whether the next step() goes straight on: news of the last one may wait until then."""
        return self._scheduler.has_prepared

    def step(self, meanwhile: Callable[[], None] | None = None) -> EngineCoreOutputs:
        """Runs one step and returns its news, with stats. Raises EngineDeadError if it fails.

        meanwhile: called once, whatever comes of the step, in another thread while the model runs
        where the core can; an error it raises is raised here when the step is over. It must not
        call the core.
        """
        errand = _Errand(meanwhile)
        try:
            self._raise_if_dead()
            outputs = self._run_step(errand)
        finally:
            errand.run()
        if errand.error is not None:
            raise errand.error
        return outputs

    def _run_step(self, errand: "_Errand") -> EngineCoreOutputs:
        started = time.perf_counter()
        try:
            outputs, worked = self._step(errand, started)
        except Exception as error:
            raise self._die(error) from error
        except BaseException as error:  # an interrupt: a step that was cut short cannot go on
            self._die(error)
            raise
        if worked:
            self._step_time_s = time.perf_counter() - started
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self._forget(output.request_id)
        if self._refused:
            outputs.outputs.extend(self._refused)
            self._refused = []
        outputs.stats = self.stats()
        return outputs

    def _step(self, errand: "_Errand", started: float) -> tuple[EngineCoreOutputs, bool]:
        if self._grammar.has_pending:
            idle = not (self._refused or self._scheduler.has_requests())
            self._queue(self._grammar.take_ready(wait_s=_GRAMMAR_WAIT_S if idle else 0.0))
        if not self._scheduler.has_requests():
            return EngineCoreOutputs(outputs=[]), False
        so = self._scheduler.schedule()
        worked = bool(so.num_scheduled_tokens)
        self._idle_steps = 0 if worked else self._idle_steps + 1
        assert self._idle_steps < MAX_IDLE_STEPS, (
            f"nothing was scheduled for {MAX_IDLE_STEPS} steps with "
            f"{len(self._request_ids)} requests"
        )
        if not worked:
            return EngineCoreOutputs(outputs=[]), False
        handle = self._executor.submit(self._grammar.with_masks(so))

        def beside() -> None:
            errand.run()
            self._scheduler.schedule_ahead()

        mro = self._side.run(lambda: self._executor.collect(handle), beside)
        outputs = self._scheduler.update_from_output(so, self._grammar.advance(mro))
        self.live.step_over(so, time.perf_counter() - started)
        return outputs, True

    def _die(self, error: BaseException) -> EngineDeadError:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.dead = EngineDeadError(
            f"the engine failed in a step and has stopped; {len(self._request_ids)} requests were "
            f"lost ({' '.join(reason.split())})"
        )
        logger.error("engine step failed", exc_info=error)
        self._request_ids.clear()
        self._grammar.clear()
        return self.dead

    def _raise_if_dead(self) -> None:
        if self.dead is not None:
            raise EngineDeadError(self.dead.message)

    def reset_prefix_cache(self) -> None:
        """Drops every cached block no request holds."""
        self._raise_if_dead()
        self._scheduler.reset_prefix_cache()
        self.live.touch()

    def watch(self, interval_s: float) -> None:
        """From now on `live` has events, at most one frame each interval; 0: no more."""
        if interval_s <= 0:
            self.live = NoWatch()
        elif isinstance(self.live, LiveWatch):
            self.live.interval_s = interval_s  # slots stay what they are
        else:
            self.live = LiveWatch(self._scheduler, interval_s)

    def stats(self) -> SchedulerStats:
        """Counters and gauges after the last step."""
        stats = self._scheduler.stats()
        stats.step_time_s = self._step_time_s
        return stats

    def describe(self) -> Mapping[str, str]:
        """Facts about the executor, for people."""
        return self._executor.describe()

    def shutdown(self) -> None:
        """Frees the model. Idempotent."""
        self._grammar.clear()
        self._side.close()
        self._executor.shutdown()


class _Errand:
    """A call to make once, at whatever moment; its error is kept."""

    def __init__(self, call: Callable[[], None] | None) -> None:
        self._call = call
        self.error: BaseException | None = None

    def run(self) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        try:
            call()
        except BaseException as error:
            self.error = error
