"""GrammarChecker: verdicts in other processes, remembered, and an end to what has none."""

from collections.abc import Iterator

import pytest

from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.grammar.checker import GrammarChecker

# intersections of patterns: doubles with each one, and has no bound of its own
ENDLESS = {"type": "string", "allOf": [{"pattern": f".*a.{{{i}}}.*b"} for i in range(1, 30)]}


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(max_cpu_s=0.3)
    yield checker
    checker.close()


def test_verdicts(checker: GrammarChecker) -> None:
    checker.check(StructuredOutputs(json={"type": "object"}))
    for _ in range(2):  # the second is remembered
        with pytest.raises(InvalidRequestError, match='"not"') as refused:
            checker.check(StructuredOutputs(json={"not": {}}, field="response_format"))
        assert refused.value.param == "response_format"


def test_what_never_ends_is_ended(checker: GrammarChecker) -> None:
    checker.check(StructuredOutputs(choice=["before"]))
    with pytest.raises(InvalidRequestError, match="make it simpler"):
        checker.check(StructuredOutputs(json=ENDLESS))
    asked: list[StructuredOutputs] = []
    ask = checker._ask

    def watched(spec: StructuredOutputs) -> str:
        asked.append(spec)
        return ask(spec)

    checker._ask = watched  # type: ignore[method-assign]
    with pytest.raises(InvalidRequestError, match="make it simpler"):
        checker.check(StructuredOutputs(json=ENDLESS))
    assert not asked, "a verdict that cost so much is remembered"
    checker.check(StructuredOutputs(choice=["after"]))
    assert len(asked) == 1


def test_a_helper_that_died_is_replaced(checker: GrammarChecker) -> None:
    checker.check(StructuredOutputs(choice=["a"]))
    helper = checker._idle.get()
    assert helper is not None
    helper.close()
    checker._idle.put(helper)
    checker.check(StructuredOutputs(choice=["b"]))


def test_close_ends_the_helpers() -> None:
    checker = GrammarChecker()
    checker.check(StructuredOutputs(choice=["a"]))
    helper = checker._idle.get()
    checker._idle.put(helper)
    checker.close()
    checker.close()
    assert helper is not None and not helper.is_alive
    checker.check(StructuredOutputs(choice=["b"]))  # late questions are answered
    assert [checker._idle.get() for _ in range(2)].count(None) == 1
