"""The native sampler against the NumPy one: the same tokens, ranks and alternatives, from the block
maxima of every ISA."""

import numpy as np
import pytest

from octavo.backends.reference.sampler import sample_rows
from octavo.graph.step_arrays import SamplingArrays, StepLimits
from tests.parity.kernels import ISAS, assert_same_bits, native

ROWS = 24


def _arrays(vocab: int, **fields: object) -> SamplingArrays:
    limits = StepLimits(max_tokens=ROWS, max_seqs=ROWS, max_rows=ROWS, max_blocks_per_seq=1,
                        max_mask_rows=4, max_sparse=4096, vocab_size=vocab)
    arrays = SamplingArrays(limits)
    arrays.position[:] = np.arange(ROWS) + 11
    arrays.seed[:] = np.arange(ROWS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for name, value in fields.items():
        getattr(arrays, name)[:] = value
    return arrays


def _logits(vocab: int, seed: int, spread: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((ROWS, vocab)) * spread).astype(np.float32)


def _native(logits: np.ndarray, arrays: SamplingArrays, width: int, isa: str = "generic"):
    rows = len(logits)
    out = (np.zeros(rows, np.int32), np.zeros(rows, np.float32), np.zeros(rows, np.int32),
           np.zeros((rows, width), np.int32), np.zeros((rows, width), np.float32))
    native.sample_rows(logits.copy(), arrays, *out, isa=isa)
    return out


def _check(logits: np.ndarray, arrays: SamplingArrays) -> np.ndarray:
    """Asserts native == NumPy and the same bits for every ISA; returns the tokens."""
    expected = sample_rows(logits, arrays, len(logits))
    got = _native(logits, arrays, expected[3].shape[1])
    for isa in ISAS[1:]:
        for one, other in zip(got, _native(logits, arrays, expected[3].shape[1], isa), strict=True):
            assert_same_bits(one, other)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[2], expected[2])
    np.testing.assert_array_equal(got[3], expected[3])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(got[4], expected[4], rtol=1e-6, atol=1e-5)
    return got[0]


# vocabularies: smaller than a block of 32, not a multiple of it, and a real one
@pytest.mark.parametrize("vocab", [7, 100, 1000, 49152])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.3, "num_logprobs": 0},
        {"temperature": 1.0, "top_k": 40},
        {"temperature": 1.0, "top_k": 3000},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 1.0, "top_p": 0.05},
        {"temperature": 0.7, "min_p": 0.1},
        {"temperature": 0.9, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "num_logprobs": 5},
        {"temperature": 1.0, "top_k": 6, "top_p": 0.99999, "num_logprobs": 20},
        {"temperature": 2.0, "top_k": 5000, "top_p": 0.7},
    ],
    ids=lambda f: ",".join(f"{k}={v}" for k, v in f.items()) or "greedy",
)
def test_filters(vocab: int, spread: float, fields: dict[str, float]) -> None:
    rows = 4 if vocab == 49152 else ROWS
    logits = _logits(vocab, vocab, spread)[:rows]
    tokens = _check(logits, _arrays(vocab, **fields))
    if not fields:
        np.testing.assert_array_equal(tokens, logits.argmax(axis=1))


@pytest.mark.parametrize("seed", range(8))
def test_everything_at_once(seed: int) -> None:
    """Random parameters a row, masks, bias with bans, penalties, score rows, ties."""
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(40, 700))
    logits = np.round(_logits(vocab, seed) * 4) / np.float32(4)  # many equal logits
    arrays = _arrays(vocab, temperature=rng.choice([0, 0.5, 1, 2], ROWS),
                     top_k=rng.choice([0, 1, 5, vocab, vocab + 9], ROWS),
                     top_p=rng.choice([1, 0.5, 0.95], ROWS), min_p=rng.choice([0, 0.05, 1], ROWS),
                     repetition_penalty=rng.choice([1, 1.3, 0.8], ROWS),
                     presence_penalty=rng.choice([0, 0.6, -1], ROWS),
                     frequency_penalty=rng.choice([0, 0.4, -0.5], ROWS),
                     sample_index=rng.integers(0, 5, ROWS),
                     num_logprobs=rng.choice([-1, 0, 3, vocab], ROWS),
                     mask_index=rng.integers(-1, 4, ROWS))
    arrays.masks[:] = rng.integers(0, 2**32, arrays.masks.shape, dtype=np.uint32)
    arrays.target_ids[:] = np.where(rng.random(ROWS) < 0.2, rng.integers(0, vocab, ROWS), -1)
    for start, ids in ((arrays.penalty_start, arrays.penalty_ids),
                       (arrays.bias_start, arrays.bias_ids)):
        start[1:] = np.cumsum(rng.integers(0, 20, ROWS))
        for r in range(ROWS):
            n = start[r + 1] - start[r]
            ids[start[r] : start[r + 1]] = rng.choice(vocab, n, replace=False)
    arrays.penalty_counts[:] = rng.integers(0, 4, arrays.penalty_counts.size)
    values = rng.choice([-np.inf, -3.5, 2.25, 30.0], arrays.bias_values.size)
    arrays.bias_values[:] = values
    tokens = _check(logits, arrays)
    scored = arrays.target_ids >= 0
    np.testing.assert_array_equal(tokens[scored], arrays.target_ids[scored])


def test_listed_ids_report_the_floats_that_all_would() -> None:
    """In their order, whatever else the row does; those at -inf too; other rows as ever."""
    vocab = 700
    rng = np.random.default_rng(3)
    logits = _logits(vocab, 3)
    logits[:, 9] = -np.inf
    arrays = _arrays(vocab, temperature=1.0, num_logprobs=rng.choice([-1, 0, 4], ROWS),
                     mask_index=rng.integers(-1, 4, ROWS))
    arrays.masks[:] = rng.integers(0, 2**32, arrays.masks.shape, dtype=np.uint32)
    arrays.target_ids[::5] = 17
    everything = _arrays(vocab, num_logprobs=vocab)
    _, _, _, all_ids, all_logprobs = _native(logits, everything, vocab)
    lengths = rng.choice([0, 1, 30], ROWS)
    arrays.report_start[1:] = np.cumsum(lengths)
    arrays.num_logprobs[lengths > 0] = lengths[lengths > 0]
    listed = [rng.permutation(vocab)[:n] for n in lengths]
    for r, ids in enumerate(listed):
        ids[:1] = 9
        arrays.report_ids[arrays.report_start[r] : arrays.report_start[r + 1]] = ids
    _check(logits, arrays)
    _, _, _, top_ids, top_logprobs = _native(logits, arrays, 30)
    for r, ids in enumerate(listed):
        by_id = dict(zip(all_ids[r].tolist(), all_logprobs[r].tolist())) | {9: -np.inf}
        if len(ids):
            assert top_ids[r, : len(ids)].tolist() == ids.tolist()
            assert top_logprobs[r, : len(ids)].tolist() == [by_id[i] for i in ids.tolist()]


def _strange_logits(vocab: int) -> np.ndarray:
    logits = _logits(vocab, 1)
    logits[0, :] = np.nan
    logits[1, ::2] = np.nan
    logits[2, 5] = np.inf
    logits[3, 69] = logits[3, 7] = np.inf
    logits[4, :] = -np.inf
    logits[5, 1:] = -np.inf
    logits[6, :] = np.finfo(np.float32).max
    logits[7, :] = 0
    logits[8, ::3] = -np.finfo(np.float32).max
    logits[9, 3] = np.finfo(np.float32).max
    logits[10, :] = -1
    logits[10, 13::7] = -0.0
    logits[10, 14::14] = 0.0
    return logits


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [70, 128, 301])
def test_block_maxima(isa: str, vocab: int) -> None:
    """NaN left out, +inf the largest float, -0 as 0, -inf for nothing; the last block is short."""
    logits = _strange_logits(vocab)
    found = np.full((ROWS, -(-vocab // 64)), 7, np.float32)
    native.block_maxima(isa, logits, found)
    finite = np.where(np.isnan(logits), -np.inf, logits)
    finite = np.minimum(finite, np.finfo(np.float32).max)
    expected = np.maximum.reduceat(finite, range(0, vocab, 64), axis=1) + np.float32(0)
    assert_same_bits(found, expected)


def test_strange_logits() -> None:
    vocab = 70
    logits = _strange_logits(vocab)
    for fields in ({}, {"temperature": 1.0}, {"temperature": 0.5, "top_k": 10},
                   {"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.01, "min_p": 0.2}):
        tokens = _check(logits, _arrays(vocab, num_logprobs=4, **fields))
        assert tokens[0] == tokens[4] == -1
        assert not np.isnan(logits[1, tokens[1]])
        assert tokens[2] == 5 and tokens[5] == 0 and tokens[9] == 3
        assert tokens[3] in (7, 69)
    assert _check(logits, _arrays(vocab))[3] == 7


def test_all_banned_gives_minus_one() -> None:
    arrays = _arrays(64, temperature=1.0, mask_index=0, num_logprobs=1)
    assert (_check(_logits(64, 0), arrays) == -1).all()


def test_row_does_not_depend_on_the_others() -> None:
    vocab = 300
    logits = _logits(vocab, 5)
    arrays = _arrays(vocab, temperature=1.0, top_p=0.9, num_logprobs=3)
    together = _native(logits, arrays, 3)
    for r in (0, 7, 23):
        single = _arrays(vocab, temperature=1.0, top_p=0.9, num_logprobs=3)
        single.position[0], single.seed[0] = arrays.position[r], arrays.seed[r]
        alone = _native(logits[r : r + 1], single, 3)
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_array_equal(a[0], b[r])
