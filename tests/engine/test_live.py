"""Watching an engine: frames and bounds, mailboxes, restarts, and outputs left as they are."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.core.live import LiveHello, LiveStep, LiveSteps
from octavo.core.messages import CoreEvents
from octavo.engine.core import EngineCore
from octavo.engine.live_feed import MAX_LISTENERS, LiveFeed, LiveListener
from octavo.engine.live_watch import (
    MAX_BLOCK_IDS,
    MAX_REQUESTS,
    MAX_STEPS,
    STATE_INTERVAL_S,
    LiveWatch,
    NoWatch,
)
from octavo.errors import EngineDeadError, ListenersFullError
from octavo.testing.fake_async_llm import fake_async_llm
from tests.engine.parts import ScriptedExecutor, config_of, core_of
from tests.engine.test_core_process import DEADLINE_S, run
from tests.engine.test_supervisor import Engines, drain, server_config, until
from tests.simulation.harness import make_request

HELLO = LiveHello(model="m", version="0", block_size=16, num_blocks=4, max_num_seqs=1,
                  max_num_batched_tokens=8, max_model_len=64, backend="fake", threads=1)
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched_core(interval_s: float = 0.1, **config: int) -> tuple[EngineCore, LiveWatch, Clock]:
    core = core_of(config_of(**config), ScriptedExecutor("x" * 1000))
    clock = Clock()
    watch = core.live = LiveWatch(core._scheduler, interval_s, clock=clock,
                                  wall_clock=lambda: 1e9)
    return core, watch, clock


def test_nothing_is_told_before_it_is_due_or_when_nothing_happened() -> None:
    core, watch, clock = watched_core()
    assert watch.due_in_s() == 0.0
    first = watch.take()
    assert first is not None and first.state is not None and not first.steps.steps
    assert watch.due_in_s() is None and watch.take() is None
    clock.now += 10
    assert watch.take() is None  # nothing has changed
    core.add([make_request("a", [1, 2, 3], max_tokens=50)])
    second = watch.take()
    assert second is not None and second.state is not None
    assert [r.id for r in second.state.requests] == ["a"]
    core.step()
    assert watch.take() is None and watch.due_in_s() == pytest.approx(0.1)
    clock.now += 0.11
    third = watch.take()
    assert third is not None and third.state is None, "snapshots are rarer than frames"
    [step] = third.steps.steps
    assert step.reqs == [(0, 3, 0)] and (step.t, step.waiting, step.running) == (1e9, 0, 1)
    assert watch.due_in_s() == pytest.approx(STATE_INTERVAL_S - 0.11)
    clock.now += 0.2
    fourth = watch.take()
    assert fourth is not None and fourth.state is not None


def test_bounds_of_a_frame() -> None:
    core, watch, clock = watched_core(num_blocks=2048, max_model_len=4096,
                                      max_num_batched_tokens=512, max_num_waiting=400)
    core.add([make_request(f"r{i}", [i] * 200, max_tokens=4000) for i in range(300)])
    for _ in range(MAX_STEPS + 7):
        core.step()
    events = watch.take()
    assert events is not None and events.state is not None
    steps = events.steps
    assert (len(steps.steps), steps.dropped) == (MAX_STEPS, 7)
    assert [s.n for s in steps.steps] == list(range(8, MAX_STEPS + 8))
    state = events.state
    assert (len(state.requests), state.running, state.waiting) == (MAX_REQUESTS, 8, 292)
    assert [r.state for r in state.requests[:9]] == ["running"] * 8 + ["waiting"]
    assert sum(len(r.blocks) for r in state.requests) <= MAX_BLOCK_IDS
    core.abort([f"r{i}" for i in range(300)])
    core.add([make_request("next", [1], max_tokens=2)])
    core.step()
    clock.now += 1
    events = watch.take()
    assert events is not None and events.state is not None
    [step] = events.steps.steps
    assert sorted(step.finished) == list(range(MAX_REQUESTS)), "whoever had a slot gave it back"
    assert events.state.totals.finished == 300


def test_block_ids_of_a_snapshot_are_bounded() -> None:
    core, watch, _ = watched_core(num_blocks=4096, max_model_len=16384,
                                  max_num_batched_tokens=65536, max_num_seqs=40)
    shared = [7] * 16000  # 1000 blocks each, most of them the same
    core.add([make_request(f"r{i}", [*shared, i], max_tokens=5) for i in range(20)])
    core.step()
    core.step()
    events = watch.take()
    assert events is not None and events.state is not None
    shown = events.state.requests
    assert all(r.num_blocks == 1001 for r in shown)
    assert sum(len(r.blocks) for r in shown) == MAX_BLOCK_IDS
    assert "+" in events.state.blocks.refs


def test_a_dear_snapshot_is_rarer() -> None:
    core, watch, clock = watched_core()
    source = core._scheduler

    def slow() -> Any:
        clock.now += 0.01
        return type(source).stats(source)  # type: ignore[arg-type]

    source.stats = slow  # type: ignore[method-assign]
    assert watch.take() is not None
    watch.touch()
    clock.now += 1.0
    assert watch.take() is None
    clock.now += 1.0
    assert watch.take() is not None


def test_the_watch_can_be_turned_off_and_its_interval_changed() -> None:
    core = core_of(config_of(), ScriptedExecutor("x" * 100))
    assert isinstance(core.live, NoWatch) and core.live.take() is None
    core.watch(0.1)
    watch = core.live
    core.watch(0.5)
    assert core.live is watch and watch.interval_s == 0.5
    core.watch(0)
    assert isinstance(core.live, NoWatch) and core.live.due_in_s() is None


def step_of(n: int) -> LiveStep:
    return LiveStep(n=n, t=0.0, dt=0.1, reqs=[], waiting=0, running=0, preempted=[], finished=[])


def events_of(*numbers: int, dropped: int = 0) -> CoreEvents:
    return CoreEvents(LiveSteps(steps=[step_of(n) for n in numbers], dropped=dropped))


async def batch(listener: LiveListener) -> dict[str, Any]:
    return {name: json.loads(data) for name, data in await listener.get()}


def test_listeners_of_one_watch() -> None:
    async def test() -> None:
        asked: list[float] = []
        feed = LiveFeed(asked.append)
        feed.engine_ready(HELLO)
        assert asked == []
        fast, slow = feed.listen(0.05), feed.listen(2.0)
        assert asked == [0.05]
        assert (await batch(fast))["hello"]["model"] == "m"
        feed.take(events_of(1, 2))
        feed.take(events_of(3))
        found = await batch(fast)
        assert [s["n"] for s in found["steps"]["steps"]] == [1, 2, 3]
        feed.take(events_of(*range(4, 4 + MAX_STEPS), dropped=2))
        found = await batch(slow)
        assert list(found) == ["hello", "steps"]
        assert len(found["steps"]["steps"]) == MAX_STEPS and found["steps"]["dropped"] == 5
        assert found["steps"]["steps"][-1]["n"] == MAX_STEPS + 3
        assert (fast.num_dropped, slow.num_dropped) == (2, 5)
        fast.close()
        assert asked == [0.05, 2.0] and feed.num_listeners == 1
        fast.close()
        slow.close()
        assert asked == [0.05, 2.0, 0.0] and feed.num_listeners == 0
        assert await slow.get() == []

    run(test())


def test_the_number_of_listeners_is_bounded_and_the_end_comes_at_once() -> None:
    async def test() -> None:
        feed = LiveFeed(lambda interval_s: None)
        listeners = [feed.listen(5.0) for _ in range(MAX_LISTENERS)]
        with pytest.raises(ListenersFullError, match="close one"):
            feed.listen(5.0)
        feed.engine_ready(HELLO)
        await batch(listeners[0])
        feed.take(events_of(1))
        waiting = asyncio.create_task(listeners[0].get())  # for its interval
        await asyncio.sleep(0)
        feed.close(EngineDeadError("gone"))
        with pytest.raises(EngineDeadError, match="gone"):
            await waiting
        assert feed.num_listeners == 0
        with pytest.raises(EngineDeadError):
            feed.listen(1.0)

    run(test())


def test_a_restarted_engine_is_watched_again() -> None:
    async def test() -> None:
        engines = Engines(server_config(engine_restarts=1), failing={0})
        llm = engines.llm
        await llm.wait_ready()
        listener = llm.watch(0.05)
        assert "hello" in await batch(listener)
        with pytest.raises(EngineDeadError):
            await drain(llm, "a")
        seen: list[str] = []
        while "hello" not in seen:
            seen += await batch(listener)
        await until(lambda: llm.is_ready)
        assert await drain(llm, "b") == "hello"
        total, numbers = 0, []
        while total < 6:
            found = await batch(listener)
            for step in found.get("steps", {"steps": []})["steps"]:
                numbers.append(step["n"])
                total += sum(prompt + output for _, prompt, output in step["reqs"])
        assert numbers == list(range(1, 7)), "the steps of the second engine, from its first"
        await llm.shutdown()
        assert await listener.get() == []

    run(test())


def test_the_end_of_the_engine_does_not_wait_for_requests_to_tell_listeners() -> None:
    async def test() -> None:
        engine = fake_async_llm()
        llm = engine.llm
        await llm.wait_ready()
        listener = llm.watch(5.0)
        await batch(listener)
        engine.executor.run.clear()
        request = asyncio.create_task(drain(llm, "a"))
        await until(lambda: llm.num_unfinished_requests == 1)
        stopping = asyncio.create_task(llm.shutdown(drain=True, timeout=DEADLINE_S))
        assert await listener.get() == []
        assert not stopping.done() and not request.done()
        engine.executor.run.set()
        await stopping
        assert len(await request) == 200

    run(test())


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_outputs_are_the_same_while_watched(tiny_folder: Path, async_scheduling: bool) -> None:
    prompts = ["one", "two, which is longer than the other", "two, which is longer", "x" * 80]

    async def tokens(llm: AsyncLLM, index: int) -> tuple[list[int], int, int]:
        found: list[int] = []
        async for output in llm.generate(prompts[index], LONG, f"r{index}"):
            for part in output.outputs:
                found += part.token_ids
        assert output.prompt_token_ids is not None
        return found, len(output.prompt_token_ids), output.num_cached_tokens or 0

    async def test() -> None:
        results, counted = [], 0
        for watched in (False, True):
            llm = AsyncLLM(str(tiny_folder), num_blocks=64, engine="inproc", num_threads=1,
                           async_scheduling=async_scheduling)
            await llm.wait_ready()
            listener = llm.watch(0.05) if watched else None
            answers = await asyncio.gather(*(tokens(llm, i) for i in range(len(prompts))))
            results.append([answer[0] for answer in answers])
            if listener is not None:
                expected = sum(n_prompt - n_cached + len(out) - 1
                               for out, n_prompt, n_cached in answers)
                while counted < expected:
                    steps = (await batch(listener)).get("steps", {"steps": []})["steps"]
                    counted += sum(p + d for step in steps for _, p, d in step["reqs"])
                assert counted == expected
            await llm.shutdown()
        assert results[0] == results[1]
        assert all(len(tokens) == 60 for tokens in results[0])

    run(test())
