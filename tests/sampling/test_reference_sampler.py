"""The NumPy sampler: what each filter and penalty means, by hand; draws follow the softmax.

tests/parity/test_sampler.py carries all of it over to the native sampler.
"""

import numpy as np
import pytest

from octavo.backends.reference.sampler import gumbel_noise, philox, sample_rows
from octavo.graph.step_arrays import SamplingArrays, StepLimits


def _arrays(rows: int, vocab: int, **fields: object) -> SamplingArrays:
    arrays = SamplingArrays(StepLimits(
        max_tokens=rows, max_seqs=rows, max_rows=rows, max_blocks_per_seq=1, max_mask_rows=2,
        max_sparse=64, vocab_size=vocab,
    ))
    arrays.position[:] = np.arange(rows)
    for name, value in fields.items():
        getattr(arrays, name)[:] = value
    return arrays


def _greedy(logits: list[float], arrays: SamplingArrays) -> int:
    return int(sample_rows(np.array([logits], np.float32), arrays, 1)[0][0])


def _drawn(logits: list[float], draws: int = 400, **fields: object) -> set[int]:
    """The set of ids drawn over many positions."""
    arrays = _arrays(draws, len(logits), temperature=1.0, **fields)
    rows = np.tile(np.array(logits, np.float32), (draws, 1))
    return set(sample_rows(rows, arrays, draws)[0].tolist())


def test_philox_known_answers() -> None:
    """The first vector of the authors' known-answer file, and the counter words' places."""
    assert philox(0, 0, 0, 1)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    blocks = {tuple(philox(*key, 1)[0]) for key in [(0, 0, 0), (1, 0, 0), (1 << 32, 0, 0),
                                                    (0, 1, 0), (0, 0, 1)]}
    assert len(blocks) == 5


def test_noise_is_finite_and_gumbel() -> None:
    noise = gumbel_noise(7, 3, 0, 200_000)
    assert np.isfinite(noise).all()
    assert abs(noise.mean() - 0.5772) < 0.01  # Euler's constant
    assert abs(noise.var() - np.pi**2 / 6) < 0.03
    np.testing.assert_array_equal(noise[:1001], gumbel_noise(7, 3, 0, 1001))


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert _greedy([1, 5, 5, 0], _arrays(1, 4)) == 1


def test_bias_then_penalties() -> None:
    arrays = _arrays(1, 4, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    arrays.penalty_start[1] = 3
    arrays.penalty_ids[:3] = [0, 1, 2]
    arrays.penalty_counts[:3] = [0, 2, 1]  # id 0 only in the prompt
    # 4 / 2 = 2; 6 / 2 - 2 * .25 - .5 = 2; -1 * 2 - .25 - .5; untouched
    assert _greedy([4.0, 6.0, -1.0, 1.99], arrays) == 0
    assert _greedy([3.9, 6.0, -1.0, 1.99], arrays) == 1
    assert _greedy([3.9, 5.9, -1.0, 1.99], arrays) == 3
    arrays.bias_start[1] = 2
    arrays.bias_ids[:2] = [3, 2]
    arrays.bias_values[:2] = [-np.inf, 7.6]
    assert _greedy([3.9, 5.9, -1.0, 50.0], arrays) == 2  # (7.6 - 1) / 2 - .75 = 2.55


def test_mask_comes_first() -> None:
    arrays = _arrays(1, 40, mask_index=1)
    arrays.masks[1] = [1 << 3, 1 << (35 - 32)]
    logits = [9.0] * 40
    logits[35] = 9.5
    assert _greedy(logits, arrays) == 35
    arrays.bias_start[1] = 1
    arrays.bias_ids[0], arrays.bias_values[0] = 0, 100.0
    assert _greedy(logits, arrays) == 35  # a bias cannot bring a masked id back


def test_top_k_keeps_lower_ids_of_equals() -> None:
    assert _drawn([1, 2, 1, 2, 1], top_k=3) == {0, 1, 3}
    assert _drawn([1, 2, 1, 2, 1], top_k=1) == {1}
    assert _drawn([1, 2, 1, 2, 1], top_k=9) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_id_that_reaches_it() -> None:
    logits = np.log([0.1, 0.4, 0.3, 0.2]).tolist()
    assert _drawn(logits, top_p=0.39) == {1}
    assert _drawn(logits, top_p=0.41) == {1, 2}
    assert _drawn(logits, top_p=0.89) == {1, 2, 3}
    assert _drawn(logits, top_p=1e-6) == {1}
    # on the renormalized distribution of what top_k left: 0.4 / 0.7 > 0.5
    assert _drawn(logits, top_k=2, top_p=0.5) == {1}
    assert _drawn([0.0] * 4, top_p=0.5) == {0, 1}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = np.log([0.1, 0.4, 0.3, 0.2]).tolist()
    assert _drawn(logits, min_p=0.3) == {1, 2, 3}
    assert _drawn(logits, min_p=1.0) == {1}


def test_report_is_of_the_raw_logits() -> None:
    arrays = _arrays(1, 4, num_logprobs=4, temperature=1.0, top_k=1)
    arrays.bias_start[1] = 1
    arrays.bias_ids[0], arrays.bias_values[0] = 0, 100.0
    p = [0.125, 0.5, 0.25, 0.125]
    sampled, logprob, rank, top_ids, top = sample_rows(np.log(np.array([p])), arrays, 1)
    assert sampled[0] == 0 and rank[0] == 3
    np.testing.assert_allclose(logprob[0], np.log(0.125), rtol=1e-6)
    assert top_ids[0].tolist() == [1, 2, 0, 3]  # ties: lower id first
    np.testing.assert_allclose(top[0], np.log([0.5, 0.25, 0.125, 0.125]), rtol=1e-6)


def test_score_rows_draw_nothing() -> None:
    arrays = _arrays(1, 3, target_ids=2, temperature=1.0)
    sampled, logprob, rank, _, _ = sample_rows(np.log(np.array([[0.5, 0.3, 0.2]])), arrays, 1)
    assert (sampled[0], rank[0]) == (2, 3)
    np.testing.assert_allclose(logprob[0], np.log(0.2), rtol=1e-6)


def _chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("varied", ["position", "seed", "sample_index"])
def test_draws_follow_the_softmax(varied: str, temperature: float) -> None:
    """Chi-square over 4,000 draws that differ in one part of the noise key only."""
    draws, vocab = 4000, 10
    logits = np.random.default_rng(4).standard_normal(vocab).astype(np.float32)
    arrays = _arrays(draws, vocab, temperature=temperature, position=5, seed=np.uint64(99))
    getattr(arrays, varied)[:] = np.arange(draws)
    tokens = sample_rows(np.tile(logits, (draws, 1)), arrays, draws)[0]
    p = np.exp(logits / temperature)
    p /= p.sum()
    counts = np.bincount(tokens, minlength=vocab)
    assert _chi_square(counts, p) < 27.9  # 9 degrees of freedom, 1 in 1,000; the draws are fixed
    # neighbours in the key are independent: pairs follow the product
    pairs = np.bincount(tokens[::2] * vocab + tokens[1::2], minlength=vocab**2)
    assert _chi_square(pairs, np.outer(p, p).ravel()) < 148.2  # 99 degrees, 1 in 1,000


def test_wrong_distribution_is_noticed() -> None:
    """The chi-square test can fail: draws at temperature 1 are not those of 1.25."""
    draws, vocab = 4000, 10
    logits = np.random.default_rng(4).standard_normal(vocab).astype(np.float32)
    arrays = _arrays(draws, vocab, temperature=1.0)
    tokens = sample_rows(np.tile(logits, (draws, 1)), arrays, draws)[0]
    p = np.exp(logits / 1.25)
    assert _chi_square(np.bincount(tokens, minlength=vocab), p / p.sum()) > 27.9
