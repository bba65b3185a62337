"""LLM and its surroundings: Ctrl-C at any moment, several threads, calls from within a call."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.interrupts import interrupts_between_steps
from octavo.engine.outputs import RequestOutput
from octavo.errors import EngineDeadError, InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


@pytest.fixture
def llm(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), max_model_len=128, num_blocks=64) as llm:
        yield llm


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in outputs]


def at_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Calls `do` in the middle of the step of that number."""
    assert llm._client is not None
    executor = llm._client._core._executor
    collect, calls = executor.collect, []

    def hooked(handle):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == step:
            do()
        return collect(handle)

    monkeypatch.setattr(executor, "collect", hooked)


def test_ctrl_c_at_any_line_leaves_an_engine_that_goes_on(tiny_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.interrupted", str(tiny_folder), "151"],
        cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 16


def test_two_presses_wait_for_the_step_and_a_third_does_not(
        llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        at_step(llm, patch, 2, press_twice)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("a", GREEDY)
    assert len(ids(llm.generate("a", GREEDY))[0]) == 8
    with pytest.raises(KeyboardInterrupt), interrupts_between_steps():
        press_twice()
        num_pressed = 2
        signal.raise_signal(signal.SIGINT)
        num_pressed = 3
    assert num_pressed == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_press_after_the_last_step_is_not_lost() -> None:
    passed = False
    with pytest.raises(KeyboardInterrupt), interrupts_between_steps() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        passed = True
    assert passed


def test_threads_take_turns(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [["a", "bb"], ["ccc"], ["dddd", "e", "f"], ["g"]]
    alone = [ids(llm.generate(p, GREEDY)) for p in prompts]
    found: list[list[list[int]] | None] = [None] * len(prompts)

    def call(i: int) -> None:
        found[i] = ids(llm.generate(prompts[i], GREEDY, use_tqdm=False))

    others = [threading.Thread(target=call, args=(i,)) for i in (1, 2, 3)]
    running = []

    def start_others() -> None:
        for thread in others:
            thread.start()
        watcher = threading.Thread(target=lambda: running.append(llm.stats().num_running))
        watcher.start()  # looking does not wait
        watcher.join(TIMEOUT_S)

    at_step(llm, monkeypatch, 2, start_others)
    call(0)
    assert running == [2]
    for thread in others:
        thread.join(TIMEOUT_S)
    assert found == alone


def test_a_call_from_within_a_call_is_refused_and_the_first_goes_on(
        llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def call_again() -> None:
        for call in (lambda: llm.generate("b", GREEDY), llm.reset_prefix_cache, llm.shutdown):
            with pytest.raises(InvalidRequestError, match="in a call of this thread"):
                call()
            refused.append(1)

    alone = ids(llm.generate("a", GREEDY))
    at_step(llm, monkeypatch, 2, call_again)
    assert ids(llm.generate("a", GREEDY)) == alone and len(refused) == 3


def test_shutdown_waits_for_the_call_of_another_thread(
        llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ids(llm.generate("a", GREEDY))
    closing = threading.Thread(target=llm.shutdown)
    at_step(llm, monkeypatch, 2, closing.start)
    assert ids(llm.generate("a", GREEDY)) == alone
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    with pytest.raises(EngineDeadError, match="was shut down"):
        llm.generate("a", GREEDY)
