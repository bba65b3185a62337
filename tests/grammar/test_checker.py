"""GrammarChecker: verdicts in other processes, remembered, and an end to what has none."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError, OctavoError
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


@pytest.mark.parametrize("dead", [{"json": {"$ref": "#"}}, {"grammar": "root ::= root"}])
def test_what_no_text_fits_is_refused(checker: GrammarChecker, dead: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="no text fits the grammar") as refused:
        checker.check(StructuredOutputs(**dead, field="guided_grammar"))
    assert refused.value.param == "guided_grammar"
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    for sound in ({"json": tree}, {"grammar": 'root ::= "a" | "b" root'},
                  {"grammar": 'start: <|no_such_token|> "a"'}):
        checker.check(StructuredOutputs(**sound))


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


def test_helpers_find_the_package_from_anywhere(
        checker: GrammarChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    checker.check(StructuredOutputs(choice=["a"]))


def test_a_helper_that_cannot_start_is_no_fault_of_the_grammar(
        checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = StructuredOutputs(choice=["a"])
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        with pytest.raises(OctavoError, match="does not start") as error:
            checker.check(spec)
        assert error.value.http_status == 500
    checker.check(spec)


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
