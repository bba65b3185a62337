"""LiveWatch: what one who watches the engine core is told, and when. Read-only.

Lives in the core, beside the scheduler, and looks only between steps. NoWatch is what an engine has
that nobody watches. Knows no socket and no listener.
"""

import collections
import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from octavo.core.live import (
    LiveBlocks,
    LiveNode,
    LiveRequest,
    LiveState,
    LiveStep,
    LiveSteps,
    LiveTotals,
    LiveTree,
)
from octavo.core.messages import CoreEvents, SchedulerStats
from octavo.core.request import Request, RequestStatus
from octavo.core.step import SchedulerOutput
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.queue import RunningList

# bounds of a frame and of a snapshot
MAX_STEPS = 200
MAX_REQUESTS = 256
MAX_BLOCK_IDS = 16384
MAX_MAP_CHARS = 4096
MAX_NODES = 300
# A snapshot takes time that is linear in the pool: at most one each STATE_INTERVAL_S, and none
# sooner than what it took, times this: so they cost the engine 0.5 % at most.
STATE_INTERVAL_S = 0.25
_STATE_PAUSE = 200

_STATE_NAMES = {RequestStatus.WAITING: "waiting", RequestStatus.RUNNING: "running",
                RequestStatus.PREEMPTED: "preempted"}


class LiveSource(Protocol):
    """What is watched: octavo/scheduler/scheduler.py has it."""

    @property
    def unfinished_requests(self) -> Mapping[str, Request]: ...
    @property
    def running_requests(self) -> RunningList: ...
    @property
    def num_finished(self) -> int: ...
    @property
    def kv_cache(self) -> KVCacheManager: ...
    def stats(self) -> SchedulerStats: ...


class NoWatch:
    """Nobody watches."""

    interval_s = 0.0

    def step_over(self, so: SchedulerOutput, dt: float) -> None:
        """Forgotten."""

    def touch(self) -> None:
        """Forgotten."""

    def take(self) -> CoreEvents | None:
        """Nothing to tell."""
        return None

    def due_in_s(self) -> float | None:
        """Nothing will be due."""
        return None


class LiveWatch:
    """One watch. interval_s: least time between two frames.

    clock: the one of arrival times; wall_clock: unix seconds.
    """

    def __init__(self, source: LiveSource, interval_s: float, *,
                 clock: Callable[[], float] = time.monotonic,
                 wall_clock: Callable[[], float] = time.time) -> None:
        self.interval_s = interval_s
        self._source = source
        self._clock = clock
        self._wall_clock = wall_clock
        self._slots: dict[str, _Slot] = {}
        self._free_slots: list[int] = []
        self._steps: collections.deque[LiveStep] = collections.deque(maxlen=MAX_STEPS)
        self._num_steps = 0  # since the last frame, left out ones included
        self._changed = True  # since the last snapshot
        self._due_s = self._state_due_s = clock()
        for request in source.running_requests:
            self._slot(request)

    def step_over(self, so: SchedulerOutput, dt: float) -> None:
        """The step is done and its result taken; it took dt seconds."""
        scheduled = so.num_scheduled_tokens
        reqs = []
        for cached in so.cached_requests:
            request_id = cached.request_id
            slot, num_tokens = self._slots[request_id], scheduled[request_id]
            num_prompt = slot.num_prompt_tokens - cached.num_computed_tokens
            if num_prompt <= 0:
                reqs.append((slot.index, 0, num_tokens))
            else:
                num_prompt = min(num_tokens, num_prompt)
                reqs.append((slot.index, num_prompt, num_tokens - num_prompt))
        for new in so.new_requests:
            slot = self._slots.get(new.request_id) or self._new_slot(new.request_id)
            slot.num_prompt_tokens = new.num_prompt_tokens
            num_tokens = scheduled[new.request_id]
            num_prompt = min(num_tokens, max(new.num_prompt_tokens - new.num_computed_tokens, 0))
            reqs.append((slot.index, num_prompt, num_tokens - num_prompt))
        unfinished, running = self._source.unfinished_requests, self._source.running_requests
        self._steps.append(LiveStep(
            n=so.step_id, t=round(self._wall_clock(), 4), dt=round(dt, 6), reqs=reqs,
            waiting=len(unfinished) - len(running), running=len(running),
            preempted=self._preempted(so, unfinished), finished=self._finished(unfinished),
        ))
        self._num_steps += 1
        self._changed = True

    def touch(self) -> None:
        """Requests came or went, or the cache changed, without a step."""
        self._changed = True

    def due_in_s(self) -> float | None:
        """Seconds until there will be a frame to take if nothing happens; None: there is none."""
        if not self._steps and not self._changed:
            return None
        due = self._due_s if self._steps else max(self._due_s, self._state_due_s)
        return max(due - self._clock(), 0.0)

    def take(self) -> CoreEvents | None:
        """The frame that is due, if one is. Call between steps."""
        now = self._clock()
        if now < self._due_s:
            return None
        state = None
        if self._changed and now >= self._state_due_s:
            state = self._state(now)
            self._changed = False
            took = self._clock() - now
            self._state_due_s = now + max(STATE_INTERVAL_S, _STATE_PAUSE * took)
        elif not self._steps:
            return None
        self._due_s = now + self.interval_s
        steps = LiveSteps(steps=list(self._steps), dropped=self._num_steps - len(self._steps))
        self._steps.clear()
        self._num_steps = 0
        return CoreEvents(steps, state)

    # ---- slots

    def _slot(self, request: Request) -> "_Slot":
        slot = self._slots.get(request.request_id)
        if slot is None:
            slot = self._new_slot(request.request_id)
            slot.num_prompt_tokens = request.num_prompt_tokens
            slot.num_preemptions = request.num_preemptions
        return slot

    def _new_slot(self, request_id: str) -> "_Slot":
        # each slot below the highest is in use or free, so the lowest number is found
        index = heapq.heappop(self._free_slots) if self._free_slots else len(self._slots)
        slot = self._slots[request_id] = _Slot(index)
        return slot

    def _preempted(self, so: SchedulerOutput, unfinished: Mapping[str, Request]) -> list[int]:
        found = []
        for request_id in so.finished_request_ids:
            slot, request = self._slots.get(request_id), unfinished.get(request_id)
            if slot is not None and request is not None and (
                request.num_preemptions > slot.num_preemptions
            ):
                slot.num_preemptions = request.num_preemptions
                found.append(slot.index)
        return found

    def _finished(self, unfinished: Mapping[str, Request]) -> list[int]:
        """Frees the slots of those who have left."""
        gone = [request_id for request_id in self._slots if request_id not in unfinished]
        found = [self._slots.pop(request_id).index for request_id in gone]
        for index in found:
            heapq.heappush(self._free_slots, index)
        return found

    # ---- snapshots

    def _state(self, now: float) -> LiveState:
        source, kv = self._source, self._source.kv_cache
        stats = source.stats()
        refs, per_char = kv.view_blocks(MAX_MAP_CHARS)
        return LiveState(
            t=round(self._wall_clock(), 4), waiting=stats.num_waiting, running=stats.num_running,
            requests=self._requests(now),
            blocks=LiveBlocks(total=stats.num_blocks, free=stats.num_free_blocks,
                              cached=stats.num_cached_blocks, per_char=per_char, refs=refs),
            tree=_tree(kv, now),
            totals=LiveTotals(
                steps=stats.num_steps, prompt_tokens=stats.num_prompt_tokens,
                generation_tokens=stats.num_generation_tokens,
                prefix_queries=stats.prefix_cache_queries, prefix_hits=stats.prefix_cache_hits,
                preemptions=stats.num_preemptions, copies_on_write=stats.num_copies_on_write,
                jump_forward_tokens=stats.num_jump_forward_tokens, finished=source.num_finished,
            ),
        )

    def _requests(self, now: float) -> list[LiveRequest]:
        kv = self._source.kv_cache
        num_ids_left = MAX_BLOCK_IDS
        found = []
        for request in itertools.islice(self._in_order(), MAX_REQUESTS):
            blocks = kv.view_table(request, num_ids_left)
            num_ids_left -= len(blocks)
            found.append(LiveRequest(
                slot=self._slot(request).index, id=request.request_id,
                state=_STATE_NAMES[request.status], prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                computed_tokens=request.num_computed_tokens,
                cached_tokens=max(request.num_cached_tokens, 0),
                age_s=round(max(now - request.arrival_time_s, 0.0), 3),
                num_blocks=kv.num_blocks_held(request), blocks=blocks,
            ))
        return found

    def _in_order(self) -> Iterator[Request]:
        """Running ones by rank, then the others by arrival."""
        yield from self._source.running_requests
        for request in self._source.unfinished_requests.values():
            if request.status != RequestStatus.RUNNING:
                yield request


class _Slot:
    """The number of a live request, and what must be remembered of it."""

    __slots__ = ("index", "num_preemptions", "num_prompt_tokens")

    def __init__(self, index: int) -> None:
        self.index = index
        self.num_prompt_tokens = 0
        self.num_preemptions = 0


def _tree(kv: KVCacheManager, now: float) -> LiveTree:
    edges, left_out = kv.view_tree(MAX_NODES)
    nodes = [
        LiveNode(
            id=edge.edge_id, parent=edge.parent_id, blocks=edge.num_blocks,
            tokens=edge.num_blocks * kv.block_size, refs=edge.ref_cnt,
            last_used_s=0.0 if edge.last_used_s is None
            else round(max(now - edge.last_used_s, 0.0), 3),
        )
        for edge in edges
    ]
    return LiveTree(nodes=nodes, left_out=left_out)
