"""Loading tiny models on a backend, and runs that must give the same bits however they are cut."""

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.backends.seam import KVOptions, LoadedModel
from octavo.graph.step_arrays import F32, StepArrays, StepLimits
from octavo.testing.forward import Chunk, run_step
from octavo.testing.toy_model import TinyModel

pytest.importorskip("octavo._native", reason="the native module is not built")

from octavo.backends.cpu.backend import CpuBackend

BLOCK_SIZE = 16
NUM_BLOCKS = 192


def limits_of(model: TinyModel, max_tokens: int = 160) -> StepLimits:
    return StepLimits(
        max_tokens=max_tokens, max_seqs=24, max_rows=max_tokens, max_blocks_per_seq=20,
        vocab_size=model.graph.vocab_size, max_sparse=1 << 12,
    )  # fmt: skip


def load_cpu(
    model: TinyModel, *, kv: str = "f32", threads: int = 2, max_tokens: int = 160
) -> LoadedModel:
    return CpuBackend().load(
        model.graph, model.weights,
        kv=KVOptions(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, dtype=kv),
        limits=limits_of(model, max_tokens), num_threads=threads,
    )  # fmt: skip


def sequences(count: int, lengths: Sequence[int], vocab: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, lengths[i % len(lengths)]).tolist() for i in range(count)]


def run_mixed(
    loaded: LoadedModel, limits: StepLimits, prompts: list[list[int]], chunk_sizes: Sequence[int]
) -> list[F32]:
    """Logits of every position of every prompt, all prompts side by side, each cut into chunks
    of its own size; blocks of the sequences interleave."""
    arrays = StepArrays(limits)
    tables = [
        [[i + b * len(prompts) for b in range(-(-len(p) // BLOCK_SIZE))]]
        for i, p in enumerate(prompts)
    ]
    done = [0] * len(prompts)
    found: list[list[F32]] = [[] for _ in prompts]
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        room, chunks, owners = limits.max_tokens, [], []
        for i, prompt in enumerate(prompts):
            size = min(chunk_sizes[i % len(chunk_sizes)], len(prompt) - done[i], room)
            if size > 0 and len(chunks) < limits.max_seqs:
                ids = prompt[done[i] : done[i] + size]
                chunks.append(Chunk(token_ids=ids, start=done[i], block_ids=tables[i]))
                owners.append(i)
                room -= size
        logits = run_step(loaded, arrays, chunks, block_size=BLOCK_SIZE).logits
        assert logits is not None
        at = 0
        for i, chunk in zip(owners, chunks, strict=True):
            found[i].append(logits[at : at + len(chunk.token_ids)].copy())
            at += len(chunk.token_ids)
            done[i] += len(chunk.token_ids)
    return [np.concatenate(parts) for parts in found]
