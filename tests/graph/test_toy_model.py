"""The vocabulary's rarer ops on the reference backend, against an independent program."""

import numpy as np
import pytest

from octavo.backends.reference.backend import ReferenceBackend, ReferenceModel
from octavo.backends.seam import KVOptions
from octavo.graph.step_arrays import StepArrays, StepLimits
from octavo.testing.forward import Chunk, run_step
from octavo.testing.toy_model import MemoryWeights, ToyShape, toy_graph, toy_tensors
from tests.graph.toy_program import toy_logits

SHAPE = ToyShape()
BLOCK_SIZE = 4
LIMITS = StepLimits(
    max_tokens=64, max_seqs=4, max_rows=64, max_blocks_per_seq=16, num_kv_groups=2,
    vocab_size=SHAPE.vocab,
)  # fmt: skip


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return toy_tensors(3, SHAPE)


def load(tensors: dict[str, np.ndarray]) -> ReferenceModel:
    kv = KVOptions(block_size=BLOCK_SIZE, num_blocks=64, dtype="f32")
    return ReferenceBackend().load(
        toy_graph(SHAPE), MemoryWeights(tensors), kv=kv, limits=LIMITS, num_threads=1
    )


def test_a_batch_in_chunks_equals_the_plain_program(tensors: dict[str, np.ndarray]) -> None:
    """Three sequences, chunks of mixed sizes, blocks in random order, different in both groups."""
    rng = np.random.default_rng(0)
    lengths = [40, 23, 5]
    texts = [rng.integers(0, SHAPE.vocab, n).tolist() for n in lengths]
    free = rng.permutation(64).tolist()
    blocks = [
        [[free.pop() for _ in range(-(-n // BLOCK_SIZE))] for _ in range(2)] for n in lengths
    ]
    model, arrays = load(tensors), StepArrays(LIMITS)
    done, found = [0, 0, 0], [[], [], []]
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chunks, who = [], []
        for seq, text in enumerate(texts):
            count = min(int(rng.integers(0, 12)), len(text) - done[seq])
            if count:
                token_ids = text[done[seq] : done[seq] + count]
                chunks.append(
                    Chunk(token_ids=token_ids, start=done[seq], block_ids=blocks[seq])
                )
                who.append(seq)
                done[seq] += count
        if chunks:
            logits = run_step(model, arrays, chunks, block_size=BLOCK_SIZE).logits
            assert logits is not None
            at = 0
            for seq, chunk in zip(who, chunks, strict=True):
                found[seq].append(logits[at : at + len(chunk.token_ids)])
                at += len(chunk.token_ids)
    for text, rows in zip(texts, found, strict=True):
        expected = toy_logits(tensors, SHAPE, text)
        assert np.ptp(expected) > 5
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["1.sinks", "1.router_bias", "0.down_bias", "0.norm1_bias"])
def test_every_rare_weight_counts(tensors: dict[str, np.ndarray], name: str) -> None:
    text = list(range(20))
    chunk = Chunk(token_ids=text, start=0, block_ids=[list(range(5)), list(range(5, 10))])
    changed = tensors[name].copy()
    changed[::2] += 1
    model = load(tensors | {name: changed})
    logits = run_step(model, StepArrays(LIMITS), [chunk], block_size=BLOCK_SIZE).logits
    assert np.abs(logits - toy_logits(tensors, SHAPE, text)).max() > 1e-2


def test_wanted_taps_are_left_behind(tensors: dict[str, np.ndarray]) -> None:
    model = load(tensors)
    chunk = Chunk(token_ids=[1, 2, 3], start=0, block_ids=[[0], [1]], rows=[2])
    run_step(model, StepArrays(LIMITS), [chunk], block_size=BLOCK_SIZE)
    assert model.taps == {}
    model.wanted_taps = {"hidden.1"}
    run_step(model, StepArrays(LIMITS), [chunk], block_size=BLOCK_SIZE)
    assert {name: tap.shape for name, tap in model.taps.items()} == {"hidden.1": (3, SHAPE.hidden)}
