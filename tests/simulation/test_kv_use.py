"""How much of the allocated KV holds tokens, under real conversation lengths."""

import csv
import random
from pathlib import Path

from octavo.config import SchedulerSection
from tests.simulation.harness import Harness, make_request, random_prompt

LENGTHS = Path(__file__).parents[1] / "data" / "azure_conv_lengths.csv"
NUM_RUNNING = 32
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
NUM_REQUESTS = 150  # of the 400 lengths: some 1,000 steps with 32 running


def _lengths() -> list[tuple[int, int]]:
    with LENGTHS.open() as file:
        rows = csv.reader(line for line in file if not line.startswith("#"))
        next(rows)
        return [(int(context), int(generated)) for context, generated in rows]


def test_live_tokens_fill_the_allocated_slots() -> None:
    """32 running requests, unshared, sampled every step: at least 96 % (16-token blocks)."""
    rng = random.Random(0)
    harness = Harness(
        num_blocks=NUM_RUNNING * MAX_MODEL_LEN // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        vocab_size=32_000,
        check=False,
        scheduler=SchedulerSection(
            max_num_batched_tokens=2048, max_num_seqs=NUM_RUNNING, max_model_len=MAX_MODEL_LEN
        ),
    )
    for i, (context, generated) in enumerate(_lengths()[:NUM_REQUESTS]):
        prompt = random_prompt(rng, min(context, MAX_MODEL_LEN - 1), vocab_size=32_000)
        harness.add(make_request(f"r{i}", prompt, max_tokens=generated, eos=False))
    live = allocated = num_samples = 0
    while harness.scheduler.has_requests():
        harness.step()
        stats = harness.scheduler.stats()
        if stats.num_running == NUM_RUNNING:
            assert stats.live_tokens >= 0.96 * stats.allocated_slots
            live += stats.live_tokens
            allocated += stats.allocated_slots
            num_samples += 1
    stats = harness.scheduler.stats()
    assert num_samples > 300
    assert stats.prefix_cache_hits == 0, "the requests were meant to share nothing"
    assert stats.num_preemptions == 0
    print(f"{num_samples} samples, mean use {live / allocated:.4f}")
