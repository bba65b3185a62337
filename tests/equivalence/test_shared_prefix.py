"""Decode over a shared prefix on the real model: attention merged over sequences, read one by one,
and over private copies draw the same tokens with the same logprobs, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np

from octavo import LLM, SamplingParams
from octavo.core.messages import SchedulerStats

VOCAB = 49152
PREFIX = 530  # two whole splits of 256 positions


def run(path: Path, **options: Any) -> tuple[list[object], SchedulerStats]:
    """Outputs of a few requests over one prefix, some with several samples, and the counters."""
    rng = np.random.default_rng(5)
    prefix = rng.integers(300, VOCAB, PREFIX).tolist()
    prompts = [prefix + rng.integers(300, VOCAB, n).tolist() for n in (1, 20, 3, 40)]
    params = [SamplingParams(n=n, seed=i, max_tokens=12, ignore_eos=True, logprobs=1,
                             temperature=0.8 if n > 1 else 0.0)
              for i, n in enumerate((1, 3, 1, 2))]
    with LLM(str(path), max_model_len=1024, num_blocks=512, max_num_seqs=16, **options) as llm:
        llm.generate([prefix], SamplingParams(max_tokens=1), use_tqdm=False)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        stats = llm.stats()
    return [(s.token_ids, s.cumulative_logprob) for o in outputs for s in o.outputs], stats


def test_merged_reads_change_no_bit(model_path: Path) -> None:
    merged, stats = run(model_path, num_threads=2)
    assert stats.num_merged_rows >= 7 * 10  # seven samples, most of their steps
    assert stats.prefix_cache_hits > 3 * 500
    alone, stats = run(model_path, num_threads=2, merge_shared_prefix=False)
    assert stats.num_merged_rows == 0 < stats.prefix_cache_hits
    private, stats = run(model_path, num_threads=2, enable_prefix_caching=False)
    assert stats.prefix_cache_hits == 0
    one_thread, stats = run(model_path, num_threads=1)
    assert stats.num_merged_rows >= 7 * 10
    assert merged == alone == private == one_thread
