"""Logit edits of one request against the plain definition, along random outputs."""

import numpy as np
import numpy.typing as npt
import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRequestData
from octavo.worker.sampling.state import SamplingState, allowed_mask

VOCAB = 40


def new_request(params: SamplingParams, prompt: list[int], output: list[int] | None = None,
                bad_words: tuple[tuple[int, ...], ...] = (),
                eos: tuple[int, ...] = (2,)) -> NewRequestData:
    output = output or []
    return NewRequestData("r", prompt + output, len(prompt), 0, [0], params, 1, 0, eos, bad_words)


def expected_bias(params: SamplingParams, output: list[int],
                  bad_words: tuple[tuple[int, ...], ...],
                  eos: tuple[int, ...]) -> npt.NDArray[np.float32]:
    bias = np.zeros(VOCAB, np.float32)
    for token_id, value in (params.logit_bias or {}).items():
        bias[token_id] += value
    if len(output) < params.min_tokens:
        for token_id in (*eos, *(params.stop_token_ids or ())):
            bias[token_id] = -np.inf
    for word in bad_words:
        rest = list(word[:-1])
        if not rest or output[-len(rest):] == rest:
            bias[word[-1]] = -np.inf
    return bias


@pytest.mark.parametrize("seed", range(5))
def test_bias_follows_the_output(seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = SamplingParams(logit_bias={3: 1.5, 2: 4.0, 7: -2.0}, min_tokens=5,
                            stop_token_ids=[7, 9], max_tokens=100)
    bad_words = ((5,), (1, 2), (1, 1, 3), (0, 3))
    state = SamplingState.of(new_request(params, [1, 1], bad_words=bad_words), vocab_size=VOCAB)
    assert state is not None
    output: list[int] = []
    for _ in range(60):
        ids, values = state.bias()
        assert len(set(ids.tolist())) == len(ids), "an id twice"
        got = np.zeros(VOCAB, np.float32)
        got[ids] = values
        np.testing.assert_array_equal(got, expected_bias(params, output, bad_words, (2,)))
        token = int(rng.integers(0, 4))
        output.append(token)
        state.append(token)


@pytest.mark.parametrize("repetition", [1.0, 1.2])
def test_counts_follow_the_output(repetition: float) -> None:
    rng = np.random.default_rng(3)
    prompt = rng.integers(0, VOCAB, 30).tolist()
    params = SamplingParams(repetition_penalty=repetition, presence_penalty=0.5)
    state = SamplingState.of(new_request(params, prompt), vocab_size=VOCAB)
    assert state is not None and state.counts is not None
    output: list[int] = []
    for _ in range(200):
        got = dict(zip(state.counts.ids.tolist(), state.counts.counts.tolist()))
        seen = set(output) | (set(prompt) if repetition != 1.0 else set())
        assert got == {t: output.count(t) for t in seen}
        token = int(rng.integers(0, VOCAB))
        output.append(token)
        state.append(token)


def test_a_resumed_request_has_the_same_state() -> None:
    params = SamplingParams(frequency_penalty=1.0, min_tokens=2, logit_bias={1: 1.0})
    words = ((4, 5),)
    whole = SamplingState.of(new_request(params, [1, 2], bad_words=words), vocab_size=VOCAB)
    assert whole is not None and whole.counts is not None
    for token in (3, 3, 4):
        whole.append(token)
    resumed = SamplingState.of(new_request(params, [1, 2], [3, 3, 4], words), vocab_size=VOCAB)
    assert resumed is not None and resumed.counts is not None
    assert [a.tolist() for a in whole.bias()] == [a.tolist() for a in resumed.bias()]
    assert whole.counts.counts.tolist() == resumed.counts.counts.tolist()
    assert 5 in whole.bias()[0].tolist()


def test_plain_requests_have_no_state() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.5, logprobs=2)
    assert SamplingState.of(new_request(params, [1]), vocab_size=VOCAB) is None


@pytest.mark.parametrize("ids", [[0], [31], [32], [39], [0, 31, 32, 39], list(range(40)), [5, 5]])
def test_allowed_mask(ids: list[int]) -> None:
    mask = allowed_mask(ids, VOCAB)
    assert mask.shape == (2,) and mask.dtype == np.uint32
    on = [i for i in range(64) if mask[i // 32] >> np.uint32(i % 32) & np.uint32(1)]
    assert on == sorted(set(ids))
