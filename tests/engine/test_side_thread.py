"""SideThread and StepLoop: what runs beside a step, whose errors are whose, and what waits."""

import threading

import pytest

from octavo.core.messages import EngineCoreOutputs
from octavo.engine.side_thread import NoSideThread, SideThread
from octavo.engine.step_loop import StepLoop


def test_the_call_stays_here_and_the_other_runs_beside_it() -> None:
    side = SideThread()
    beside_ran, threads = threading.Event(), []

    def call() -> int:
        assert beside_ran.wait(30), "nothing ran beside the call"
        return threading.get_ident()

    def beside() -> None:
        threads.append(threading.current_thread())
        beside_ran.set()

    assert side.run(call, beside) == threading.get_ident()
    assert side.run(lambda: 2, beside) == 2
    assert threads[0] is threads[1] is not threading.current_thread()
    side.close()
    side.close()
    threads[0].join(30)
    assert not threads[0].is_alive()


def test_errors_of_the_call_come_first_and_the_thread_lives_on() -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    side = SideThread()
    with pytest.raises(ValueError, match="beside"):
        side.run(lambda: 1, lambda: fail("beside"))
    with pytest.raises(ValueError, match="call"):
        side.run(lambda: fail("call"), lambda: fail("beside"))
    assert side.run(lambda: 3, lambda: None) == 3
    side.close()


def test_without_overlap_only_the_call_is_made() -> None:
    ran: list[int] = []
    assert NoSideThread().run(lambda: 4, lambda: ran.append(1)) == 4
    assert not ran


class _Core:
    """Steps by script: whether the next step is prepared after each, and which step fails."""

    def __init__(self, prepared: list[bool], *, fail_at: int = -1) -> None:
        self._prepared = prepared
        self._fail_at = fail_at
        self.num_steps = 0
        self.log: list[str] = []
        self.is_prepared = False

    def step(self, meanwhile=None) -> EngineCoreOutputs:  # type: ignore[no-untyped-def]
        number = self.num_steps
        self.num_steps += 1
        if meanwhile is not None:
            meanwhile()
        self.log.append(f"step {number}")
        if number == self._fail_at:
            raise RuntimeError("on fire")
        self.is_prepared = self._prepared[number]
        return EngineCoreOutputs(outputs=[])


def test_news_wait_for_a_prepared_step_only() -> None:
    core = _Core([False, True, True, False])
    loop = StepLoop(core, lambda news: core.log.append("news"))
    found = []
    for _ in range(4):
        loop.step()
        found.append(" ".join(core.log))
        core.log.clear()
    assert found == ["step 0 news", "step 1", "news step 2", "news step 3 news"]


def test_news_come_in_order_though_a_step_fails() -> None:
    core = _Core([True, True], fail_at=1)
    loop = StepLoop(core, lambda news: core.log.append("news"))
    loop.step()
    assert core.log == ["step 0"], "the news wait"
    with pytest.raises(RuntimeError, match="on fire"):
        loop.step()
    assert core.log == ["step 0", "news", "step 1"]


def test_news_are_settled_when_the_prepared_step_is_gone() -> None:
    core = _Core([True])
    loop = StepLoop(core, lambda news: core.log.append("news"))
    loop.step()
    loop.settle()
    assert core.log == ["step 0"], "a step is to come"
    core.is_prepared = False
    loop.settle()
    loop.settle()
    assert core.log == ["step 0", "news"]
