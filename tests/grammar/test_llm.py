"""Structured outputs through the whole engine, on a model without sense: the grammar alone makes
the text. Everything a request can ask for beside it, and everything the engine does to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams, StructuredOutputs
from octavo.engine.outputs import CompletionOutput
from octavo.errors import InvalidRequestError
from tests.engine.parts import EOS
from tests.grammar.parts import compact, fits

COLOURS = ["red", "green", "blue", "grün", "緑", "🟩"]
PERSON: dict[str, Any] = {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
                                     "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name", "age"], "additionalProperties": False,
}


def params(**fields: Any) -> SamplingParams:
    structured = {k: fields.pop(k) for k in ("json", "regex", "choice", "grammar", "json_object")
                  if k in fields}
    defaults: dict[str, Any] = {"temperature": 1.0, "seed": 4, "max_tokens": 100}
    return SamplingParams(structured_outputs=StructuredOutputs(**structured),
                          **(defaults | fields))


def outputs(llm: LLM, *asked: SamplingParams, prompt: str = "once upon a time"
            ) -> list[CompletionOutput]:
    results = llm.generate([prompt] * len(asked), list(asked), use_tqdm=False)
    return [part for result in results for part in result.outputs]


def test_every_kind(llm: LLM) -> None:
    person, colour, number, word, free = outputs(
        llm, params(json=PERSON), params(choice=COLOURS), params(regex="[1-9][0-9]{2}"),
        params(grammar='start: "a" ("b" | "c")~2..5'), params(json_object=True))
    assert fits(json.loads(person.text), PERSON) and compact(person.text)
    assert colour.text in COLOURS and number.text.isdecimal() and len(number.text) == 3
    assert word.text.startswith("a") and set(word.text[1:]) <= {"b", "c"}
    assert free.text.startswith("{")
    assert {o.finish_reason for o in (person, colour, number, word)} == {"stop"}


def test_samples_have_a_grammar_each(llm: LLM) -> None:
    parts = outputs(llm, params(choice=COLOURS, n=6, temperature=2.0))
    assert len(parts) == 6 and {p.text for p in parts} <= set(COLOURS)
    assert len({p.text for p in parts}) > 1


def test_parallel_requests_with_different_grammars(llm: LLM) -> None:
    sets = [[f"{i}{c}" for c in "abc"] for i in range(12)]
    asked = [params(choice=choices, seed=i) for i, choices in enumerate(sets)]
    together = [p.text for p in outputs(llm, *asked)]
    assert all(text in choices for text, choices in zip(together, sets))
    assert together == [outputs(llm, one)[0].text for one in asked]


def test_the_last_token_of_a_complete_grammar_is_text_and_has_its_logprob(llm: LLM) -> None:
    (part,) = outputs(llm, params(choice=["abc"], logprobs=2))
    assert part.text == "abc" and part.token_ids == list(b"abc") and part.finish_reason == "stop"
    assert part.logprobs is not None and len(part.logprobs) == 3
    assert part.cumulative_logprob is not None and part.cumulative_logprob < -1.0


def test_complete_at_the_length_limit_is_stop_and_cut_is_length(llm: LLM) -> None:
    whole, cut = outputs(llm, params(choice=["abcd"], max_tokens=4),
                         params(choice=["abcd"], max_tokens=3))
    assert (whole.text, whole.finish_reason) == ("abcd", "stop")
    assert (cut.text, cut.finish_reason) == ("abc", "length")


def test_a_limit_inside_a_character(llm: LLM) -> None:
    """What a cut character becomes is the detokenizer's business; nothing else is lost."""
    (part,) = outputs(llm, params(choice=["漢字"], max_tokens=4))
    assert part.finish_reason == "length" and part.text.startswith("漢")
    assert part.token_ids == list("漢字".encode()[:4])


def test_min_tokens_and_ignore_eos_hold_until_the_grammar_is_complete(llm: LLM) -> None:
    ends_early = [p.text for s in range(8)
                  for p in outputs(llm, params(regex="(ab)+", seed=s, logit_bias={EOS: 100}))]
    assert set(ends_early) == {"ab"}
    held, ignored, done = outputs(
        llm, params(regex="(ab)+", min_tokens=10, logit_bias={EOS: 100}),
        params(regex="(ab)+", ignore_eos=True, logit_bias={EOS: 100}, max_tokens=20),
        params(choice=["xy"], min_tokens=10, ignore_eos=True))
    assert held.text == "ab" * 5 and held.finish_reason == "stop"
    assert ignored.text == "ab" * 10 and ignored.finish_reason == "length"
    assert done.text == "xy" and done.finish_reason == "stop"


def test_stop_strings_and_ids_end_it_too(llm: LLM) -> None:
    text, token = outputs(llm, params(choice=["one two three"], stop=["two"]),
                          params(choice=["one two three"], stop_token_ids=[ord("t")]))
    assert (text.text, text.stop_reason) == ("one ", "two")
    assert (token.text, token.stop_reason) == ("one ", ord("t"))


def test_with_penalties_and_other_masks(llm: LLM) -> None:
    penalized, allowed = outputs(
        llm, params(json=PERSON, repetition_penalty=1.5, presence_penalty=2.0,
                    frequency_penalty=2.0),
        params(choice=["aaa", "bbb"], allowed_token_ids=[ord("b"), EOS], bad_words=["c"]))
    assert fits(json.loads(penalized.text), PERSON)
    assert allowed.text == "bbb"


def test_masks_that_leave_nothing_fail_one_request(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs together"):
        outputs(llm, params(choice=["aaa"], allowed_token_ids=[ord("b")]))
    assert outputs(llm, params(choice=["still here"]))[0].text == "still here"
    assert llm.stats().num_running == llm.stats().num_waiting == 0


def test_refused_before_it_runs(llm: LLM) -> None:
    steps = llm.stats().num_steps
    with pytest.raises(InvalidRequestError, match='"not"'):
        outputs(llm, params(json={"not": {}}))
    assert llm.stats().num_steps == steps


def test_an_unknown_control_token_is_refused_by_the_engine(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="no_such"):
        outputs(llm, params(grammar='start: <no_such> "a"'))


@pytest.mark.parametrize("options", [
    {"num_blocks": 9, "max_model_len": 128},
    {"long_prefill_token_threshold": 16, "enable_prefix_caching": False},
    {"max_num_batched_tokens": 16},
], ids=["preemption", "chunks", "small-budget"])
def test_whatever_the_engine_does_the_outputs_are_the_same(llm: LLM, tiny_path: Path,
                                                           options: dict[str, Any]) -> None:
    asked = [params(json=PERSON, seed=i, logprobs=1, n=1 + i % 2) for i in range(8)]
    prompt = "a prompt of some forty tokens, shared by all"
    want = [p.token_ids for p in outputs(llm, *asked, prompt=prompt)]
    defaults: dict[str, Any] = {"max_model_len": 256, "num_blocks": 64, "max_num_seqs": 16}
    with LLM(str(tiny_path), **(defaults | options)) as other:
        got = [p.token_ids for p in outputs(other, *asked, prompt=prompt)]
        stats = other.stats()
    assert got == want
    assert stats.num_preemptions > 0 or stats.num_chunked_prefills > 0
    assert stats.num_free_blocks == stats.num_blocks


FIXED: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": ["header", "kind", "tail"],
    "properties": {"header": {"const": "a long constant text"}, "kind": {"enum": ["left", "right"]},
                   "tail": {"const": [1, 2, 3]}},
}
JUMPERS: list[dict[str, Any]] = [
    {}, {"logprobs": 2}, {"n": 3, "temperature": 2.0}, {"n": 2, "logprobs": 0},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logprobs": 1},
    *({"max_tokens": m, "logprobs": p} for m in (1, 2, 20, 33) for p in (None, 1)),
    {"stop": ["stant te"]}, {"stop": ["stant te"], "logprobs": 1},
    {"stop": ["stant te"], "min_tokens": 60},
    {"stop_token_ids": [ord("k")]}, {"stop_token_ids": [ord("k")], "logprobs": 1},
    {"stop_token_ids": [ord("x")], "include_stop_str_in_output": True},
    {"min_tokens": 70, "ignore_eos": True}, {"temperature": 0.0, "logprobs": 3},
    {"bad_words": ["zz", "zt"]}, {"bad_words": ["q"], "logprobs": 1},
    {"allowed_token_ids": [*range(32, 127)], "logprobs": 1}, {"prompt_logprobs": 1, "logprobs": 1},
]
ENGINES: list[dict[str, Any]] = [
    {}, {"max_num_batched_tokens": 16}, {"num_blocks": 16, "enable_prefix_caching": False},
    {"long_prefill_token_threshold": 3},
]


def shown(part: CompletionOutput) -> list[object]:
    return [part.index, part.token_ids, part.text, part.finish_reason, part.stop_reason,
            part.cumulative_logprob, part.logprobs]


@pytest.fixture(scope="module")
def drawn_one_by_one(tiny_path: Path) -> list[list[object]]:
    with LLM(str(tiny_path), max_model_len=256, num_blocks=64, max_num_seqs=16,
             jump_forward=False) as llm:
        parts = outputs(llm, *(params(json=FIXED, **fields) for fields in JUMPERS))
        assert llm.stats().num_jump_forward_tokens == 0
    return [shown(part) for part in parts]


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_jump_forward_changes_no_bit(tiny_path: Path, drawn_one_by_one: list[list[object]],
                                     options: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"max_model_len": 256, "num_blocks": 64, "max_num_seqs": 16}
    with LLM(str(tiny_path), **(defaults | options)) as llm:
        parts = outputs(llm, *(params(json=FIXED, **fields) for fields in JUMPERS))
        stats = llm.stats()
    for fields, part, want in zip(JUMPERS, parts, drawn_one_by_one):
        assert shown(part) == want, fields
    assert stats.num_jump_forward_tokens > 0.5 * sum(len(p.token_ids) for p in parts)
    assert stats.num_free_blocks == stats.num_blocks
    if options.get("num_blocks"):
        assert stats.num_preemptions > 0


def test_a_banned_forced_token_fails_its_request_either_way(tiny_path: Path) -> None:
    for jump_forward in (True, False):
        with LLM(str(tiny_path), max_model_len=256, num_blocks=64,
                 jump_forward=jump_forward) as llm:
            with pytest.raises(InvalidRequestError, match="structured_outputs together"):
                outputs(llm, params(json=FIXED, min_tokens=30, stop_token_ids=[ord("x")]))
            assert outputs(llm, params(json=FIXED))[0].finish_reason == "stop"
