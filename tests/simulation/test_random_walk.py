"""Random walks over scheduler and KV: every invariant after each step, every output as if alone."""

import random

import pytest

from octavo.config import SchedulerSection
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import ContextLengthError, QueueFullError, RequestTooLargeError
from octavo.kvcache.manager import BlockTable, KVCacheManager
from octavo.kvcache.radix_tree import RadixTree
from octavo.scheduler import policy
from octavo.scheduler.queue import RunningList
from octavo.testing.invariants import check_idle
from tests.simulation.harness import Harness, make_request, random_prompt

STEPS_PER_WALK = 500
NUM_WALKS = 20
NUM_WALKS_FULL = 200


class Walk:
    """One random configuration, and random events on it."""

    def __init__(self, seed: int, *, ahead: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.block_size = rng.choice([1, 2, 4, 4, 4, 8])
        num_blocks = rng.randint(4, 40)
        capacity = num_blocks * self.block_size
        self.max_model_len = rng.choice([capacity * 2, capacity, max(8, capacity // 2)])
        chunked = rng.random() < 0.8
        budget = rng.choice([3, 6, 16, 32, 64])
        if not chunked:
            budget += self.max_model_len
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=self.block_size,
            enable_prefix_caching=rng.random() < 0.75,
            ahead=ahead,
            scheduler=SchedulerSection(
                max_num_batched_tokens=budget,
                max_num_seqs=rng.choice([1, 4, 8, 16, 16]),
                max_model_len=self.max_model_len,
                max_num_waiting=rng.choice([4, 16, 64]),
                long_prefill_token_threshold=rng.choice([0, 0, 1, 4, 7]),
                max_prefill_beside_decodes=rng.choice([0, 0, 1, 5]),
                enable_chunked_prefill=chunked,
                policy=rng.choice(["fcfs", "priority"]),
            ),
        )
        self.arrival_rate = rng.choice([0.05, 0.2, 0.5])
        self.abort_rate = rng.choice([0.0, 0.02, 0.1])
        self.preempt_rate = rng.choice([0.0, 0.0, 0.03])
        self.prefixes = [self._tokens(rng.randint(1, capacity)) for _ in range(3)]
        self.num_added = 0
        self.num_refused = 0

    def run(self, num_steps: int) -> None:
        while self.harness.num_steps < num_steps:
            self._events()
            self.harness.begin_step()
            if self.harness.prepares_early:
                self.harness.scheduler.schedule_ahead()  # before the events in flight
            if self.rng.random() < 0.3:
                self._events()  # also while the step is in flight
            self.harness.end_step()
            if self.rng.random() < self.preempt_rate:
                self.harness.scheduler.preempt_latest()
        self.harness.run()
        assert not self.harness.requests, "a request never ended"
        check_idle(self.harness.scheduler)

    def _events(self) -> None:
        rng = self.rng
        while rng.random() < self.arrival_rate:
            self._add_group()
        while self.harness.requests and rng.random() < self.abort_rate:
            self.harness.abort(rng.choice(list(self.harness.requests)))
        if self.harness.requests and rng.random() < 0.01:
            self.harness.executor.failing.add(rng.choice(list(self.harness.requests)))
        if rng.random() < 0.01:
            self.harness.scheduler.reset_prefix_cache()

    def _tokens(self, length: int) -> list[int]:
        return random_prompt(self.rng, length)

    def _prompt(self) -> list[int]:
        rng = self.rng
        prompt = self._tokens(rng.choice([1, 2, 3, self.block_size, rng.randint(1, 60)]))
        if rng.random() < 0.6:
            prefix = rng.choice(self.prefixes)
            prompt = prefix[: rng.randint(1, len(prefix))] + prompt
        return prompt[: self.max_model_len - 1] if rng.random() < 0.9 else prompt

    def _params(self) -> SamplingParams:
        rng = self.rng
        return SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            min_tokens=rng.choice([0, 0, 2]),
            stop_token_ids=rng.choice([None, None, [3, 4]]),
            logprobs=rng.choice([None, None, 0]),
            structured_outputs=rng.choice([None, StructuredOutputs(regex="jumps")]),
            prompt_logprobs=rng.choice([None, None, None, 1]),
            cache_salt=rng.choice([None, None, "a"]),
            skip_reading_prefix_cache=rng.random() < 0.1,
        )

    def _add_group(self) -> None:
        rng = self.rng
        parent = f"r{self.num_added}"
        self.num_added += 1
        prompt, params = self._prompt(), self._params()
        max_tokens, priority = rng.choice([2, 3, 20, 60, 200]), rng.randint(0, 3)
        eos = rng.random() < 0.4
        for i in range(rng.choice([1, 1, 2, 3, 5])):
            try:
                self.harness.add(
                    make_request(
                        f"{parent}.{i}",
                        prompt,
                        params=params,
                        max_tokens=max_tokens,
                        priority=priority,
                        eos=eos,
                        sample_index=i,
                        fork_of=f"{parent}.0" if i else None,
                    )
                )
            except (QueueFullError, RequestTooLargeError, ContextLengthError):
                self.num_refused += 1
                assert i == 0, "a group was taken in part"
                return


def _walk(seed: int) -> None:
    walk = Walk(seed)
    walk.run(STEPS_PER_WALK)
    assert walk.num_added > walk.num_refused


@pytest.mark.parametrize("seed", range(NUM_WALKS))
def test_random_walk(seed: int) -> None:
    _walk(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1000 + NUM_WALKS_FULL))
def test_random_walk_full(seed: int) -> None:
    _walk(seed)


def _walk_ahead(seed: int, num_steps: int) -> int:
    """The same walk with steps prepared ahead and without: every step must be the same. Returns
    how many of the prepared ones ran."""
    walks = [Walk(seed, ahead=ahead) for ahead in (True, False)]
    for walk in walks:
        walk.run(num_steps)
    ahead, plain = (walk.harness for walk in walks)
    assert ahead.steps == plain.steps
    assert ahead.outputs == plain.outputs and ahead.finish_reasons == plain.finish_reasons
    assert plain.scheduler.stats().num_steps_scheduled_ahead == 0
    return ahead.scheduler.stats().num_steps_scheduled_ahead


def test_steps_prepared_ahead_are_those_decided_late() -> None:
    num_ahead = sum(_walk_ahead(seed, 120) for seed in range(8))
    assert num_ahead >= 30, "too few steps were prepared to prove anything"


def test_a_prepared_step_tells_of_a_block_that_the_step_before_gave_up() -> None:
    """In this walk a sample's last prompt chunk fills a block that the cache has already: the
    prepared step behind it must name the cached one, for its own has gone back to the pool."""
    assert _walk_ahead(2048, STEPS_PER_WALK)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2000, 2000 + NUM_WALKS_FULL))
def test_steps_prepared_ahead_full(seed: int) -> None:
    _walk_ahead(seed, STEPS_PER_WALK)


def test_walks_reach_every_mechanism() -> None:
    """The walks would prove little if nothing ever collided: they do, by the counters."""
    names = ("num_preemptions", "prefix_cache_hits", "num_copies_on_write", "num_chunked_prefills",
             "num_jump_forward_tokens")
    totals = dict.fromkeys(names, 0)
    num_shared_in_step = num_copies = 0
    for seed in range(4):
        walk = Walk(seed)
        walk.run(200)
        stats = walk.harness.scheduler.stats()
        for name in names:
            totals[name] += getattr(stats, name)
        num_shared_in_step += walk.harness.executor.num_shared_in_step
        num_copies += walk.harness.executor.num_copies
    assert all(count >= 20 for count in totals.values()), totals
    assert num_shared_in_step >= 5
    assert num_copies == totals["num_copies_on_write"]


def _never_copy(self: KVCacheManager, request: Request, table: BlockTable) -> bool:
    return False


def _saltless(self: RadixTree, cache_salt: str | None) -> bytes:
    return b"root"


def _forget_blocks(self: KVCacheManager, request: Request) -> None:
    self._tables.pop(request.request_id, None)


def _first_victim(running: RunningList) -> Request:
    return running[0]


def _keep_duplicates(
    self: RadixTree, request: Request, blocks: list, first: int, last: int
) -> list:
    RADIX_COMMIT(self, request, blocks, first, last)
    return []


def _publish_too_much(
    self: RadixTree, request: Request, blocks: list, first: int, last: int
) -> None:
    RADIX_PUBLISH(self, request, blocks, first, last)
    if last < len(blocks) and request.num_tokens >= (last + 1) * self._block_size:
        RADIX_PUBLISH(self, request, blocks, last, last + 1)


RADIX_COMMIT = RadixTree.commit
RADIX_PUBLISH = RadixTree.publish


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (KVCacheManager, "_must_copy", _never_copy),
        (KVCacheManager, "free", _forget_blocks),
        (RadixTree, "root_hash", _saltless),
        (RadixTree, "commit", _keep_duplicates),
        (RadixTree, "publish", _publish_too_much),
        (policy, "preemption_victim", _first_victim),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_walks_catch_broken_bookkeeping(
    owner: object, name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        for seed in range(NUM_WALKS):
            _walk(seed)
