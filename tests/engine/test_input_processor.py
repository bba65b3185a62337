"""Prompts and parameters: what is made of them, and what is refused."""

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.errors import ContextLengthError, InvalidRequestError, RequestTooLargeError
from octavo.testing.byte_tokenizer import byte_tokenizer
from tests.engine.parts import EOS, VOCAB, input_processor

INPUTS = input_processor(byte_tokenizer(), max_model_len=32)


def test_prompt_forms_are_one() -> None:
    ids = list(b"abc")
    for prompt in ("abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}, tuple(ids)):
        prepared = INPUTS.process("r", prompt, SamplingParams())
        assert prepared.prompt_token_ids == ids
        assert prepared.core_requests[0].eos_token_ids == [EOS]


@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {}, {"text": "x"}, [VOCAB], [-1],
                                    [True], ["a"], [1.5], {"prompt": 3}, None, 7])
def test_bad_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        INPUTS.process("r", prompt, SamplingParams())  # type: ignore[arg-type]
    assert caught.value.message and "\n" not in caught.value.message


def test_context_length_has_the_numbers() -> None:
    words = r"prompt is too long.*33 tokens.* this model's maximum context length is 32 tokens"
    with pytest.raises(ContextLengthError, match=words):
        INPUTS.process("r", [1] * 33, SamplingParams())
    with pytest.raises(ContextLengthError, match="at least one must be left"):
        INPUTS.process("r", [1] * 32, SamplingParams())
    with pytest.raises(ContextLengthError, match=r"30 tokens.*max_tokens is 3.*33.*32"):
        INPUTS.process("r", [1] * 30, SamplingParams(max_tokens=3), strict_max_tokens=True)


def test_a_prompt_that_is_only_scored_may_fill_the_context() -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    prepared = INPUTS.process("r", [1] * 32, params, strict_max_tokens=True, score_only=True)
    assert prepared.core_requests[0].max_tokens == 1
    with pytest.raises(ContextLengthError, match=r"33 tokens.*32 tokens: shorten"):
        INPUTS.process("r", [1] * 33, params, score_only=True)
    small = input_processor(byte_tokenizer(), max_model_len=64, max_kv_tokens=16)
    assert len(small.process("r", [1] * 16, params, score_only=True).prompt_token_ids) == 16
    with pytest.raises(RequestTooLargeError, match=r"17 tokens.*holds 16: shorten"):
        small.process("r", [1] * 17, params, score_only=True)
    cut = SamplingParams(max_tokens=1, prompt_logprobs=1, truncate_prompt_tokens=-1)
    assert len(INPUTS.process("r", [1] * 99, cut, score_only=True).prompt_token_ids) == 32


def test_max_tokens_is_cut_or_filled() -> None:
    def resolved(max_tokens: int | None) -> int:
        prepared = INPUTS.process("r", [1] * 30, SamplingParams(max_tokens=max_tokens))
        return prepared.core_requests[0].max_tokens

    assert (resolved(1), resolved(5), resolved(None)) == (1, 2, 2)


def test_kv_cache_too_small() -> None:
    small = input_processor(byte_tokenizer(), max_model_len=64, max_kv_tokens=16)
    with pytest.raises(RequestTooLargeError, match=r"16 tokens.*holds 16"):
        small.process("r", [1] * 16, SamplingParams())


@pytest.mark.parametrize("field, value", [("stop_token_ids", [VOCAB]),
                                          ("allowed_token_ids", [1, VOCAB]),
                                          ("logit_bias", {VOCAB: 1.0}),
                                          ("stop_token_ids", [-1])])
def test_ids_outside_the_vocabulary(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        INPUTS.process("r", "a", SamplingParams(**{field: value}))  # type: ignore[arg-type]
    assert caught.value.param == field


def test_truncation_keeps_the_end() -> None:
    def ids(keep: int, max_tokens: int | None = 16) -> list[int]:
        params = SamplingParams(truncate_prompt_tokens=keep, max_tokens=max_tokens)
        return INPUTS.process("r", list(range(100)), params).prompt_token_ids

    assert ids(3) == [97, 98, 99]
    assert ids(-1) == list(range(84, 100))
    assert ids(-1, None) == list(range(69, 100))


def test_fan_out() -> None:
    params = SamplingParams(n=3, prompt_logprobs=1, seed=7)
    prepared = INPUTS.process("r", "abc", params, priority=2)
    ids = [r.request_id for r in prepared.core_requests]
    assert len(set(ids)) == 3 and all(i.startswith("r#") for i in ids)
    assert [r.fork_of for r in prepared.core_requests] == [None, ids[0], ids[0]]
    assert [r.sample_index for r in prepared.core_requests] == [0, 1, 2]
    assert {r.seed for r in prepared.core_requests} == {7}
    assert [r.params.prompt_logprobs for r in prepared.core_requests] == [1, None, None]


def test_a_seed_is_drawn_once_per_request() -> None:
    seeds = {INPUTS.process("r", "a", SamplingParams(n=2)).seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_bad_words_with_and_without_space() -> None:
    prepared = INPUTS.process("r", "a", SamplingParams(bad_words=["no", "x"]))
    # a byte tokenizer keeps the space apart, so the form after a space is a longer one: left out
    assert prepared.core_requests[0].bad_words_token_ids == [list(b"no"), list(b"x")]
    blank = INPUTS.process("r", "a", SamplingParams(bad_words=["\n"]))
    assert blank.core_requests[0].bad_words_token_ids == [list(b"\n")]


def test_core_ids_are_never_used_twice() -> None:
    groups = [INPUTS.process(name, "a", SamplingParams(n=n))
              for name, n in (("r", 1), ("r", 2), ("r-0", 1), ("r-0", 2))]
    ids = [r.request_id for g in groups for r in g.core_requests]
    assert len(set(ids)) == 6


def test_logprobs_of_a_request_are_bounded() -> None:
    few = SamplingParams(logprobs=-1, prompt_logprobs=-1, max_tokens=16)
    INPUTS.process("r", "a" * 10, few)
    many = SamplingParams(logprobs=100, max_tokens=None, n=128)
    big = input_processor(byte_tokenizer(), max_model_len=8192, max_kv_tokens=8192)
    with pytest.raises(InvalidRequestError, match="entries"):
        big.process("r", "a", many)


def test_params_changed_after_construction_are_checked() -> None:
    params = SamplingParams()
    params.max_tokens = 2.5  # type: ignore[assignment]
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        INPUTS.process("r", "a", params)
    params = SamplingParams()
    prepared = INPUTS.process("r", "a", params)
    params.stop = ["x"]
    assert prepared.params.stop is None
    with pytest.raises(InvalidRequestError, match="priority"):
        INPUTS.process("r", "a", params, priority=10**12)


def test_seeds_of_requests_that_give_none() -> None:
    def seeds(default: int | None) -> list[int]:
        inputs = input_processor(byte_tokenizer(), max_model_len=32, default_seed=default)
        return [inputs.process("r", "a", SamplingParams()).seed for _ in range(3)]

    assert seeds(5) == seeds(5) != seeds(6)
    assert seeds(None) != seeds(None)
    for found in (seeds(5), seeds(None)):
        assert len(set(found)) == 3 and max(found) < 2**53


def test_raw_text_may_name_control_tokens() -> None:
    tokenizer = byte_tokenizer()
    name, token_id = next(iter(tokenizer.control_tokens.items()))
    inputs = input_processor(tokenizer, max_model_len=32)
    assert inputs.process("r", f"a{name}", SamplingParams()).prompt_token_ids == [
        ord("a"), token_id]
