"""Containers of the scheduler: waiting requests by rank, running requests by rank.

A request's rank is (priority, arrival index); under policy "fcfs" the priority counts as 0. It
never changes, so a preempted request waits at the head of its class again, and the last running
request is the latest arrival of the lowest priority. No decisions here.
"""

import bisect
import heapq
from collections.abc import Callable, Iterator

from octavo.config import SchedulingPolicy
from octavo.core.request import Request

_Rank = tuple[int, int]


def _rank_by_arrival(request: Request) -> _Rank:
    return (0, request.arrival_index)


def _rank_by_priority(request: Request) -> _Rank:
    return (request.priority, request.arrival_index)


_RANK: dict[SchedulingPolicy, Callable[[Request], _Rank]] = {
    "fcfs": _rank_by_arrival,
    "priority": _rank_by_priority,
}


class WaitingQueue:
    """Priority queue with removal. push, pop and remove are O(log n) amortized."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._rank = _RANK[policy]
        # Heap entries carry a push count, which makes them unique: a removed or pushed-again
        # request leaves a stale entry, recognised by a count that is not its current one.
        self._heap: list[tuple[int, int, int, Request]] = []
        self._live: dict[str, int] = {}
        self._num_pushes = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        return (e[3] for e in self._heap if self._live.get(e[3].request_id) == e[2])

    def push(self, request: Request) -> None:
        assert request.request_id not in self._live, f"{request.request_id} waits already"
        self._num_pushes += 1
        self._live[request.request_id] = self._num_pushes
        priority, arrival = self._rank(request)
        heapq.heappush(self._heap, (priority, arrival, self._num_pushes, request))

    def peek(self) -> Request:
        """The first request; the queue must not be empty."""
        while self._live.get(self._heap[0][3].request_id) != self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][3]

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._live[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        del self._live[request.request_id]
        if len(self._heap) > 64 + 2 * len(self._live):  # stale entries must not pile up
            self._heap = [e for e in self._heap if self._live.get(e[3].request_id) == e[2]]
            heapq.heapify(self._heap)


class RunningList:
    """Running requests in rank order: the first is served first, the last is preempted first."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._rank = _RANK[policy]
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=self._rank)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)
