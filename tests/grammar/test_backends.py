"""The seam's contract, on the toy and on llguidance: masks are exactly what may follow."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.grammar.backend import MatcherState
from octavo.testing.byte_tokenizer import EOS_ID, VOCAB_SIZE
from tests.grammar.parts import EOS_IDS, allowed, real_backend, toy_backend

BACKENDS = [toy_backend, real_backend]
CHOICES = [
    ["yes", "no"],
    ["a", "ab", "abc", "b"],
    ["🌶️ďábel 漢字", "🌶️", "漢字", "漢"],
    ['quote"s', "back\\slash", "new\nline", "tab\t", "#{}[]()|*+?.^$~&-"],
    ["del\x7fete", "\x1b[0m", "\x00", "line\u2028end"],
]


@pytest.fixture(scope="module", params=BACKENDS, ids=["toy", "llguidance"])
def backend(request: pytest.FixtureRequest) -> Any:
    make: Callable[[], Any] = request.param
    return make()


@pytest.mark.parametrize("choices", CHOICES, ids=lambda c: str(c)[:20])
def test_masks_are_what_may_follow(backend: Any, choices: list[str]) -> None:
    """A walk over every prefix of every choice."""
    texts = {c.encode() for c in choices}
    start = backend.compile(StructuredOutputs(choice=choices))
    for prefix in {t[:n] for t in texts for n in range(len(t) + 1)}:
        matcher = start.copy()
        matcher.accept(list(prefix))
        following = {t[len(prefix)] for t in texts if t.startswith(prefix) and t != prefix}
        ends = prefix in texts
        assert allowed(matcher, backend.vocab_size) == following | (set(EOS_IDS) if ends else set())
        state = (MatcherState.OPEN if not ends else
                 MatcherState.ACCEPTING if following else MatcherState.COMPLETE)
        assert matcher.state() == state
        forced = matcher.forced_tokens()
        assert any((prefix + bytes(forced) + rest) in texts for rest in
                   (t[len(prefix) + len(forced):] for t in texts))
        if len(following) > 1 or (following and ends):
            assert not forced
        if forced:
            assert allowed(matcher, backend.vocab_size) == {forced[0]}


def test_random_walks_with_rollback(backend: Any) -> None:
    """Taking tokens back restores the mask, the state and what a copy sees, bit for bit."""
    rng = random.Random(5)
    choices = ["".join(rng.choices("abc", k=rng.randint(1, 9))) for _ in range(30)]
    start = backend.compile(StructuredOutputs(choice=sorted(set(choices))))
    for _ in range(20):
        matcher, path = start.copy(), [allowed(start.copy(), backend.vocab_size)]
        while rng.random() < 0.93:
            if len(path) > 1 and rng.random() < 0.3:
                num_back = rng.randint(1, len(path) - 1)
                matcher.rollback(num_back)
                del path[-num_back:]
            letters = sorted(path[-1] - set(EOS_IDS))
            assert allowed(matcher.copy(), backend.vocab_size) == path[-1]
            if not letters:
                break
            matcher.accept([rng.choice(letters)])
            path.append(allowed(matcher, backend.vocab_size))


def test_a_token_that_does_not_fit_is_an_error(backend: Any) -> None:
    matcher = backend.compile(StructuredOutputs(choice=["yes"], field="response_format"))
    with pytest.raises(InvalidRequestError, match="response_format"):
        matcher.accept(list(b"ya"))


def test_eos_is_taken_at_the_end_only(backend: Any) -> None:
    matcher = backend.compile(StructuredOutputs(choice=["a", "ab"]))
    with pytest.raises(InvalidRequestError):
        matcher.copy().accept([EOS_ID])
    matcher.accept([*b"a", EOS_ID])
    assert matcher.state() == MatcherState.COMPLETE


def test_ids_beyond_the_tokenizer_are_never_allowed() -> None:
    backend = real_backend()
    for spec in (StructuredOutputs(regex="(.|\n)*"), StructuredOutputs(json_object=True)):
        matcher = backend.compile(spec)
        for letter in b'{"a':
            ids = allowed(matcher, backend.vocab_size)
            assert max(ids - set(EOS_IDS)) < 256
            matcher.accept([letter])
    assert backend.vocab_size > VOCAB_SIZE
