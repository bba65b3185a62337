"""IncrementalDetokenizer: joined pieces are the bytes' text, and no character is ever split."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.conftest import byte_level_inner

TEXT = "naïve 日本語 🦊👩‍👩‍👧 ok"
CONTROL = "<|im_end|>"


@pytest.fixture(scope="module")
def bytewise() -> Tokenizer:
    """One token a byte, so that every character of several bytes is split."""
    return Tokenizer(byte_level_inner([CONTROL]))


def run(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.flush()]


def test_every_split_of_every_character(bytewise: Tokenizer) -> None:
    ids = bytewise.encode(TEXT)
    assert len(ids) == len(TEXT.encode())
    pieces = run(IncrementalDetokenizer(bytewise), ids)
    assert "".join(pieces) == TEXT
    assert "\ufffd" not in "".join(pieces)
    assert all(len(piece) <= 1 for piece in pieces)
    for cut in range(len(ids) + 1):
        detokenizer = IncrementalDetokenizer(bytewise)
        first, second = detokenizer.push(ids[:cut]), detokenizer.push(ids[cut:])
        assert first + second + detokenizer.flush() == TEXT
        assert "\ufffd" not in first


def test_an_unfinished_character_ends_as_one_replacement(bytewise: Tokenizer) -> None:
    ids = bytewise.encode("x🦊")
    assert run(IncrementalDetokenizer(bytewise), ids[:-1]) == ["x", "", "", "", "\ufffd"]


def test_flush_of_a_finished_text_adds_nothing(bytewise: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(bytewise, bytewise.encode("prompt"))
    assert detokenizer.push(bytewise.encode("é")) == "é"
    assert detokenizer.flush() == ""


def test_a_prompt_that_ends_inside_a_character_does_not_leak(bytewise: Tokenizer) -> None:
    fox = bytewise.encode("wonderful 🦊")
    for split in range(1, 4):
        prompt, rest = fox[: len(fox) - split], fox[len(fox) - split :]
        # The output goes on with the character: it is whole, and the output's.
        assert "".join(run(IncrementalDetokenizer(bytewise, prompt), rest)) == "🦊"
        # The output does not: nothing of the prompt shows.
        assert run(IncrementalDetokenizer(bytewise, prompt), bytewise.encode("a")) == ["a", ""]
        assert run(IncrementalDetokenizer(bytewise, prompt), bytewise.encode("é")) == ["", "é", ""]
        assert run(IncrementalDetokenizer(bytewise, prompt), []) == [""]


def test_an_impossible_continuation_of_the_prompts_character(bytewise: Tokenizer) -> None:
    e0, byte_80 = bytewise.encode("ࠀ")[0], bytewise.encode("ࠀ")[2]
    pieces = run(IncrementalDetokenizer(bytewise, [e0]), [byte_80])  # E0 80 is no character
    assert "".join(pieces) == "\ufffd"  # the output's own byte
    replacement = bytewise.encode("\ufffd")
    pieces = run(IncrementalDetokenizer(bytewise, replacement[:2]), replacement[2:])
    assert "".join(pieces) == "\ufffd"


def test_control_tokens_are_left_out_or_shown(bytewise: Tokenizer) -> None:
    end = bytewise.control_tokens[CONTROL]
    ids = [*bytewise.encode("a"), end, *bytewise.encode("b"), end]
    assert "".join(run(IncrementalDetokenizer(bytewise), ids)) == "ab"
    shown = IncrementalDetokenizer(bytewise, skip_special_tokens=False)
    assert run(shown, ids) == ["a", CONTROL, "b", CONTROL, ""]


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), cuts=st.lists(st.integers(0, 40)))
def test_any_ids_any_cuts(smollm: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    edges = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    for skip in (True, False):
        detokenizer = IncrementalDetokenizer(smollm, [100, 200], skip_special_tokens=skip)
        pieces = [detokenizer.push(ids[a:b]) for a, b in itertools.pairwise(edges)]
        text = "".join(pieces) + detokenizer.flush()
        assert text == smollm.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(
        alphabet=st.characters(
            min_codepoint=0x20, max_codepoint=0x3FFFF, exclude_categories=["Cs"]
        ),
        max_size=60,
    )
)
def test_text_comes_back_token_by_token(smollm: Tokenizer, text: str) -> None:
    pieces = run(IncrementalDetokenizer(smollm), smollm.encode(text))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_ids_outside_the_vocabulary_have_no_text(smollm: Tokenizer) -> None:
    assert run(IncrementalDetokenizer(smollm), [49152, 10**6]) == ["", "", ""]
