"""GrammarManager: compiled once, started together, followed to the end, and gone."""

import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.core.messages import EngineCoreRequest
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError, OctavoError
from octavo.grammar.manager import GrammarManager, no_grammar
from octavo.testing.byte_tokenizer import EOS_ID
from octavo.testing.toy_grammar import ToyGrammarBackend
from tests.grammar.parts import EOS_IDS, toy_backend


def request(request_id: str, *choices: str, **params: Any) -> EngineCoreRequest:
    spec = StructuredOutputs(choice=list(choices)) if choices else StructuredOutputs(regex="a")
    return EngineCoreRequest(
        request_id=request_id, prompt_token_ids=[1], eos_token_ids=list(EOS_IDS), seed=1,
        max_tokens=9, params=SamplingParams(structured_outputs=spec, **params))


def drain(manager: GrammarManager) -> dict[str, OctavoError | None]:
    found = {}
    while manager.has_pending:
        found.update({r.request_id: e for r, e in manager.take_ready(wait_s=5.0)})
    return found


def masks_of(manager: GrammarManager, *request_ids: str) -> dict[str, set[int]]:
    step = manager.with_masks(SchedulerOutput(
        step_id=1, num_scheduled_tokens=dict.fromkeys(request_ids, 1)))
    return {r: set(np.flatnonzero(np.unpackbits(np.frombuffer(m, np.uint8), bitorder="little"))
                   .tolist()) for r, m in step.masks.items()}


def draw(manager: GrammarManager, **tokens: int) -> ModelRunnerOutput:
    return manager.advance(ModelRunnerOutput(
        step_id=1, sampled_token_ids={r: [t] for r, t in tokens.items()}))


@pytest.fixture
def backend() -> ToyGrammarBackend:
    return toy_backend()


@pytest.fixture
def manager(backend: ToyGrammarBackend) -> GrammarManager:
    return GrammarManager(lambda: backend)


def test_a_request_from_start_to_end(manager: GrammarManager) -> None:
    manager.add(request("r", "ab", "a"))
    assert drain(manager) == {"r": None}
    assert masks_of(manager, "r", "other") == {"r": {ord("a")}}
    assert masks_of(manager, "other") == {}
    news = draw(manager, r=ord("a"), other=5)
    assert not news.completed and not news.failed
    assert masks_of(manager, "r") == {"r": {ord("b"), *EOS_IDS}}
    assert draw(manager, r=ord("b")).completed == {"r"}
    manager.remove(["r", "unknown"])
    assert masks_of(manager, "r") == {}


def test_eos_completes_and_the_wrong_token_fails_alone(manager: GrammarManager) -> None:
    for name in ("a", "b", "c"):
        manager.add(request(name, "xyz", "x"))
    drain(manager)
    draw(manager, a=ord("x"), b=ord("x"), c=ord("x"))
    news = draw(manager, a=EOS_ID, b=ord("q"), c=ord("y"))
    assert news.completed == {"a"} and set(news.failed) == {"b"}
    assert masks_of(manager, "c") == {"c": {ord("z")}}


def test_ignore_eos_goes_on_while_there_is_more(manager: GrammarManager) -> None:
    manager.add(request("r", "a", "ab", ignore_eos=True))
    drain(manager)
    assert not draw(manager, r=ord("a")).completed
    assert masks_of(manager, "r") == {"r": {ord("b")}}
    assert draw(manager, r=ord("b")).completed == {"r"}


def test_equal_grammars_are_compiled_once(backend: ToyGrammarBackend,
                                          manager: GrammarManager) -> None:
    for i in range(6):
        manager.add(request(f"r{i}", "same"))
    assert set(drain(manager)) == {f"r{i}" for i in range(6)}
    assert backend.num_compiled == 1
    draw(manager, r0=ord("s"))
    assert masks_of(manager, "r0", "r1") == {"r0": {ord("a")}, "r1": {ord("s")}}
    for i in range(200):
        manager.add(request(f"x{i}", f"choice {i}"))
    drain(manager)
    manager.add(request("again", "same"))  # long gone from the cache
    assert drain(manager) == {"again": None} and backend.num_compiled == 202


def test_refusals_are_not_cached(backend: ToyGrammarBackend, manager: GrammarManager) -> None:
    for name in ("r", "s"):
        manager.add(request(name))
        (error,) = drain(manager).values()
        assert isinstance(error, InvalidRequestError) and "regex" in error.message
    assert backend.num_compiled == 2
    manager.add(request("ok", "fine"))
    assert drain(manager) == {"ok": None}


class _Slow(ToyGrammarBackend):
    """Compiles choices of "slow" when told to; breaks on "bug"."""

    go = threading.Event()

    def compile(self, spec: StructuredOutputs) -> Any:
        if spec.choice == ["slow"]:
            assert self.go.wait(30)
        if spec.choice == ["bug"]:
            raise RuntimeError("a bug")
        return super().compile(spec)


def test_a_slow_grammar_holds_up_no_other_and_groups_stay_together() -> None:
    toy = toy_backend()
    backend = _Slow(toy.tokens, eos_token_ids=EOS_IDS)
    manager = GrammarManager(lambda: backend)
    for name in ("p", "p-1", "p-2"):
        manager.add(request(name, "slow"))
    manager.add(request("quick", "q"))
    manager.add(request("broken", "bug"))
    found: dict[str, OctavoError | None] = {}
    while len(found) < 2:
        found.update({r.request_id: e for r, e in manager.take_ready(wait_s=5.0)})
    assert found["quick"] is None and manager.has_pending
    assert "cannot be compiled (RuntimeError)" in str(found["broken"])
    assert manager.take_ready(wait_s=0.0) == []
    manager.remove(["p-1"])
    backend.go.set()
    assert [r.request_id for r, _ in manager.take_ready(wait_s=5.0)] == ["p", "p-2"]
    assert not manager.has_pending


def test_clear_forgets_everything(manager: GrammarManager) -> None:
    manager.add(request("r", "a"))
    drain(manager)
    manager.add(request("s", "b"))
    manager.clear()
    assert not manager.has_pending and masks_of(manager, "r", "s") == {}


def test_an_engine_without_grammars_says_so() -> None:
    manager = no_grammar()
    manager.add(request("r", "a"))
    (error,) = drain(manager).values()
    assert isinstance(error, InvalidRequestError) and "not supported" in error.message


@pytest.fixture
def jumping(backend: ToyGrammarBackend) -> GrammarManager:
    return GrammarManager(lambda: backend, jump_forward=True)


def text(token_ids: list[int]) -> str:
    return bytes(token_ids).decode()


def test_forced_text_is_handed_over_at_once(jumping: GrammarManager) -> None:
    for name in ("r", "s", "t"):
        jumping.add(request(name, "one two", "one three", "other"))
    drain(jumping)
    assert masks_of(jumping, "r") == {"r": {ord("o")}}
    assert not draw(jumping, r=ord("o"), s=ord("o")).forced_token_ids
    news = draw(jumping, r=ord("n"), s=ord("t"))
    assert {r: text(t) for r, t in news.forced_token_ids.items()} == {"r": "e t", "s": "her"}
    assert news.completed == {"s"} and not news.failed
    assert masks_of(jumping, "r", "t") == {"r": {ord("w"), ord("h")}, "t": {ord("o")}}
    news = draw(jumping, r=ord("h"))
    assert text(news.forced_token_ids["r"]) == "ree" and news.completed == {"r"}


def test_the_masks_alone_give_the_same(manager: GrammarManager) -> None:
    manager.add(request("r", "one two", "one three"))
    drain(manager)
    for letter in "one t":
        assert masks_of(manager, "r") == {"r": {ord(letter)}}
        assert not draw(manager, r=ord(letter)).forced_token_ids
    assert masks_of(manager, "r") == {"r": {ord("w"), ord("h")}}


@pytest.mark.parametrize(("fields", "params", "stretches"), [
    ({}, {"allowed_token_ids": [*b"abcx"]}, ["bc"]),
    ({"bad_words_token_ids": [[ord("d")]]}, {}, ["bc", "ef"]),
    ({"bad_words_token_ids": [[ord("q"), ord("b")]]}, {}, ["", "cdef"]),
    ({}, {"min_tokens": 2, "stop_token_ids": [ord("c")]}, ["b", "def"]),
])
def test_what_the_request_may_ban_is_left_to_the_sampler(
        jumping: GrammarManager, fields: dict[str, Any], params: dict[str, Any],
        stretches: list[str]) -> None:
    message = request("r", "abcdef", **params)
    jumping.add(msgspec.structs.replace(message, **fields))
    drain(jumping)
    rest = "abcdef"
    for stretch in stretches:
        news = draw(jumping, r=ord(rest[0]))
        assert text(news.forced_token_ids.get("r", [])) == stretch
        rest = rest[1 + len(stretch):]
        assert (not rest) == ("r" in news.completed)
        if rest:
            assert masks_of(jumping, "r") == {"r": {ord(rest[0])}}
