"""What a live view is told on random walks is what scheduler and KV bookkeeping hold."""

import math

import pytest

from octavo.core.live import LiveState, LiveStep
from octavo.core.step import SchedulerOutput
from octavo.engine.live_watch import LiveWatch
from octavo.kvcache.view import TreeEdge, block_map, tree_edges
from octavo.scheduler.scheduler import Scheduler
from tests.simulation.harness import Harness
from tests.simulation.test_random_walk import Walk

STEPS = 150


class Watched:
    """A harness whose every step a watch sees and checks."""

    def __init__(self, harness: Harness) -> None:
        self.scheduler: Scheduler = harness.scheduler
        self.now_s = 0.0
        self.watch = LiveWatch(self.scheduler, 0.1, clock=lambda: self.now_s)
        self.slots: dict[str, int] = {}
        self.ids: dict[int, str] = {}
        self.num_prompt_tokens = 0
        self.num_preempted = 0
        self._end_step, self._harness = harness.end_step, harness
        harness.end_step = self.end_step  # type: ignore[method-assign]

    def end_step(self) -> None:
        so = self._harness.in_flight
        self._end_step()
        if so is not None and so.num_scheduled_tokens:
            self.watch.step_over(so, 0.0)
            self.now_s += 100
            events = self.watch.take()
            assert events is not None and events.state is not None
            [step] = events.steps.steps
            self._check_step(so, step)
            self._check_state(events.state)

    def _check_step(self, so: SchedulerOutput, step: LiveStep) -> None:
        assert step.n == so.step_id
        by_slot = {slot: (prompt, output) for slot, prompt, output in step.reqs}
        assert len(by_slot) == len(so.num_scheduled_tokens), "two requests share a slot"
        row_order = [d.request_id for d in (*so.cached_requests, *so.new_requests)]
        assert row_order == list(so.num_scheduled_tokens)
        for request_id, (slot, prompt, output) in zip(row_order, step.reqs):
            assert prompt >= 0 and output >= 0
            assert prompt + output == so.num_scheduled_tokens[request_id]
            known = self.slots.setdefault(request_id, slot)
            assert known == slot, "a slot changed"
            assert self.ids.setdefault(slot, request_id) == request_id
            self.num_prompt_tokens += prompt
        self.num_preempted += len(step.preempted)
        gone = {r for r in self.slots if r not in self.scheduler.unfinished_requests}
        assert {self.slots[r] for r in gone} == set(step.finished)
        for request_id in gone:
            del self.ids[self.slots.pop(request_id)]
        assert step.running == len(self.scheduler.running_requests)
        assert step.waiting + step.running == len(self.scheduler.unfinished_requests)

    def _check_state(self, state: LiveState) -> None:
        kv, requests = self.scheduler.kv_cache, self.scheduler.unfinished_requests
        assert {r.id for r in state.requests} == set(requests)
        assert len({r.slot for r in state.requests}) == len(requests)
        for shown in state.requests:
            request = requests[shown.id]
            assert self.slots.setdefault(shown.id, shown.slot) == shown.slot
            assert self.ids.setdefault(shown.slot, shown.id) == shown.id
            table = kv._tables.get(shown.id)
            assert shown.blocks == ([] if table is None else [b.block_id for b in table.blocks])
            assert shown.num_blocks == len(shown.blocks)
            assert shown.output_tokens == request.num_output_tokens
            assert shown.state == request.status.name.lower()
        blocks = kv._pool.blocks
        assert (state.blocks.per_char, len(state.blocks.refs)) == (1, len(blocks))
        for block, char in zip(blocks, state.blocks.refs):
            held = str(block.ref_cnt) if block.ref_cnt < 10 else "+"
            free = "." if block.block_hash is None else "c"
            assert char == (held if block.ref_cnt else free)
        free = state.blocks.refs.count(".") + state.blocks.refs.count("c")
        assert free == state.blocks.free == kv.num_free_blocks
        self._check_tree()
        assert sum(node.blocks for node in state.tree.nodes) == state.blocks.cached
        assert state.tree.left_out == 0
        stats = self.scheduler.stats()
        assert state.totals.prompt_tokens == stats.num_prompt_tokens == self.num_prompt_tokens
        assert state.totals.preemptions == stats.num_preemptions

    def _check_tree(self) -> None:
        nodes = self.scheduler.kv_cache._tree.nodes().values()
        edges, left_out = tree_edges(nodes, 1 << 20)
        assert left_out == 0
        by_id = {edge.edge_id: edge for edge in edges}
        assert len(by_id) == len(edges)
        num_children = {edge.edge_id: 0 for edge in edges}
        for edge in edges:
            if edge.parent_id is not None:
                assert by_id[edge.parent_id].ref_cnt >= edge.ref_cnt
                num_children[edge.parent_id] += 1
        assert all(n != 1 for n in num_children.values()), "a chain was not merged"
        for limit in (1, 3, 6):
            few, left_out = tree_edges(nodes, limit)
            assert len(few) == min(limit, len(edges)) and len(few) + left_out == len(edges)
            _check_closed(few)
            recency = sorted((_recency(edge) for edge in edges), reverse=True)
            assert sorted(map(_recency, few), reverse=True) == recency[:limit]


def _recency(edge: TreeEdge) -> float:
    return math.inf if edge.last_used_s is None else edge.last_used_s


def _check_closed(edges: list[TreeEdge]) -> None:
    seen: set[int | None] = {None}
    for edge in edges:
        assert edge.parent_id in seen, "a child without, or before, its parent"
        seen.add(edge.edge_id)


@pytest.mark.parametrize("seed", range(8))
def test_views_agree_with_the_truth(seed: int) -> None:
    walk = Walk(1000 + seed, ahead=seed % 2 == 1)
    watched = Watched(walk.harness)
    walk.run(STEPS)
    stats = walk.harness.scheduler.stats()
    assert watched.num_prompt_tokens == stats.num_prompt_tokens > 0
    # preempted and ended before another step: told as ended only
    assert watched.num_preempted <= stats.num_preemptions
    if walk.preempt_rate == 0 and walk.abort_rate == 0:
        assert watched.num_preempted == stats.num_preemptions


def test_a_condensed_map_shows_the_highest_of_each_run() -> None:
    walk = Walk(7)
    walk.run(60)
    blocks = walk.harness.scheduler.kv_cache._pool.blocks
    for i, block in enumerate(blocks[:12]):
        block.ref_cnt = i
    whole, one = block_map(blocks, len(blocks))
    assert one == 1 and len(whole) == len(blocks)
    assert whole[1:12] == "123456789++"
    for max_chars in (1, 2, 3, len(blocks) - 1):
        text, per_char = block_map(blocks, max_chars)
        assert len(text) <= max_chars and per_char == -(-len(blocks) // max_chars)
        order = ".c123456789+"
        for i, char in enumerate(text):
            run = whole[i * per_char : (i + 1) * per_char]
            assert char == max(run, key=order.index)
