"""WaitingQueue and RunningList: rank order, with removal."""

import random

import pytest

from octavo.core.request import Request
from octavo.scheduler.queue import RunningList, WaitingQueue
from tests.simulation.harness import make_request


def _request(index: int, priority: int = 0) -> Request:
    message = make_request(f"r{index}", [1], priority=priority)
    return Request.from_message(message, arrival_index=index, now_s=0.0)


def _drain(queue: WaitingQueue) -> list[str]:
    return [queue.pop().request_id for _ in range(len(queue))]


def test_fcfs_ignores_priority() -> None:
    queue = WaitingQueue("fcfs")
    for index, priority in ((0, 5), (1, 0), (2, 3)):
        queue.push(_request(index, priority))
    assert _drain(queue) == ["r0", "r1", "r2"]


def test_priority_then_arrival() -> None:
    queue = WaitingQueue("priority")
    for index, priority in ((0, 5), (1, 0), (2, 5), (3, -1)):
        queue.push(_request(index, priority))
    assert _drain(queue) == ["r3", "r1", "r0", "r2"]


def test_a_request_that_comes_back_is_at_the_head_of_its_class() -> None:
    queue = WaitingQueue("priority")
    old = _request(0, 1)
    for request in (_request(1, 1), _request(2, 0), old):
        queue.push(request)
    queue.remove(old)
    assert old.request_id not in queue and len(queue) == 2
    queue.push(old)
    assert _drain(queue) == ["r2", "r0", "r1"]


@pytest.mark.parametrize("seed", range(3))
def test_random_walk_against_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    queue = WaitingQueue("priority")
    waiting: list[Request] = []
    for index in range(2000):
        if rng.random() < 0.55:
            request = _request(index, rng.randint(0, 3))
            queue.push(request)
            waiting.append(request)
        elif waiting and rng.random() < 0.6:
            request = rng.choice(waiting)
            queue.remove(request)
            waiting.remove(request)
        elif waiting:
            first = min(waiting, key=lambda r: (r.priority, r.arrival_index))
            assert queue.peek() is first
            assert queue.pop() is first
            waiting.remove(first)
        assert len(queue) == len(waiting)
    assert {r.request_id for r in queue} == {r.request_id for r in waiting}


def test_removed_entries_do_not_pile_up() -> None:
    queue = WaitingQueue("fcfs")
    queue.push(_request(0))
    for index in range(1, 5000):
        request = _request(index)
        queue.push(request)
        queue.remove(request)
    assert len(queue._heap) < 100


def test_running_list_is_in_rank_order() -> None:
    running = RunningList("priority")
    requests = [_request(0, 2), _request(1, 0), _request(2, 2), _request(3, 1)]
    for request in requests:
        running.add(request)
    assert [r.request_id for r in running] == ["r1", "r3", "r0", "r2"]
    running.remove(requests[3])
    assert len(running) == 3 and running[2] is requests[2]
