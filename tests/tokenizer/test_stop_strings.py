"""StopStringMatcher: any way of cutting the text gives what a search of the whole text gives."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenizer.stop_strings import StopStringMatcher

SMALL = st.text(alphabet="ab", max_size=24)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3)


def whole_search(text: str, stops: list[str]) -> tuple[str, str | None, int]:
    """(text before, the stop string, its place): earliest start, then shortest."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None, len(text)
    start, _, stop = min(found)
    return text[:start], stop, start


@settings(max_examples=400, deadline=None)
@given(
    text=SMALL, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6), include=st.booleans()
)
def test_any_chunking_equals_a_whole_search(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopStringMatcher(stops, include_stop=include)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    emitted, matched = "", None
    for start, end in itertools.pairwise(edges):
        piece, matched = matcher.feed(text[start:end])
        emitted += piece
        if matched is not None:
            break
    if matched is None:
        piece, matched = matcher.flush()
        emitted += piece
    before, stop, _ = whole_search(text, stops)
    assert matched == stop
    assert emitted == before + (stop if include and stop else "")


def test_holds_back_only_what_may_become_a_stop_string() -> None:
    matcher = StopStringMatcher(["</end>"])
    assert matcher.feed("one </e") == ("one ", None)
    assert matcher.feed("go") == ("</ego", None)
    assert matcher.feed(" </en") == (" ", None)
    assert matcher.feed("d> tail") == ("", "</end>")
    assert matcher.matched_stop == "</end>"
    assert matcher.feed("more") == ("", "</end>")
    assert matcher.flush() == ("", "</end>")


def test_what_is_held_back_comes_out_at_the_end() -> None:
    matcher = StopStringMatcher(["STOP"])
    assert matcher.feed("the STO") == ("the ", None)
    assert matcher.flush() == ("STO", None)


def test_the_earlier_start_wins_over_the_earlier_end() -> None:
    matcher = StopStringMatcher(["bc", "abcd"])
    assert matcher.feed("abc") == ("", None)
    assert matcher.feed("d") == ("", "abcd")
    matcher = StopStringMatcher(["bc", "abcd"])
    assert matcher.feed("abc") == ("", None)
    assert matcher.feed("x") == ("a", "bc")


@pytest.mark.parametrize("stops", [[], [""]])
def test_no_stop_string_lets_everything_through(stops: list[str]) -> None:
    matcher = StopStringMatcher(stops)
    assert matcher.feed("text") == ("text", None)
    assert matcher.flush() == ("", None)
