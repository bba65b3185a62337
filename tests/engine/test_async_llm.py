"""AsyncLLM over a core in a thread, with fakes in place of the model."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.core.messages import EngineReady
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.core import EngineCore
from octavo.engine.core_client import ThreadHost
from octavo.engine.core_process import BuildCore
from octavo.errors import (
    EngineDeadError,
    EngineLoadingError,
    InvalidRequestError,
    ModelLoadError,
    OctavoError,
    QueueFullError,
)
from octavo.testing.byte_tokenizer import byte_tokenizer
from tests.engine.parts import (
    ScriptedExecutor,
    build_fake,
    config_of,
    core_of,
    parts_of,
    ready_of,
)

PARTS = parts_of(byte_tokenizer())
TIMEOUT_S = 30


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, TIMEOUT_S)

    asyncio.run(bounded())


def make(build: BuildCore, config: EngineConfig | None = None, **kwargs: Any) -> AsyncLLM:
    config = config or config_of()
    return AsyncLLM.from_parts(config, PARTS, ThreadHost(config, build), **kwargs)


def scripted(script: str, **kwargs: Any) -> BuildCore:
    def build(config: EngineConfig) -> tuple[EngineCore, EngineReady]:
        return core_of(config, ScriptedExecutor(script, **kwargs)), ready_of(config)

    return build


class GatedExecutor(ScriptedExecutor):
    """Each step waits for a permit, so that a test decides when the engine moves."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.permits = threading.Semaphore(0)
        self.ran = threading.Semaphore(0)
        self.running: set[str] = set()

    def collect(self, so: SchedulerOutput) -> ModelRunnerOutput:
        assert self.permits.acquire(timeout=TIMEOUT_S)
        self.running = set(so.num_scheduled_tokens)
        out = super().collect(so)
        self.ran.release()
        return out


def gated(script: str) -> tuple[GatedExecutor, BuildCore]:
    executor = GatedExecutor(script)
    return executor, lambda config: (core_of(config, executor), ready_of(config))


GREEDY = SamplingParams(temperature=0, max_tokens=50)


def test_many_requests_stream_and_join() -> None:
    async def test() -> None:
        llm = make(scripted("streamed text"))
        await llm.wait_ready()

        async def one(i: int) -> str:
            text = ""
            async for out in llm.generate("x" * (1 + 7 * i), GREEDY, f"r{i}"):
                text += "".join(o.text for o in out.outputs)
            assert out.finished
            return text

        texts = await asyncio.gather(*(one(i) for i in range(20)))
        assert texts == ["streamed text"] * 20
        stats = await llm.stats()
        assert stats.num_free_blocks == stats.num_blocks and stats.num_native_calls > 0
        await llm.shutdown()
        assert not llm.is_ready

    run(test())


def test_nothing_is_taken_before_the_engine_is_ready_or_after_shutdown() -> None:
    async def test() -> None:
        llm = make(scripted("x"))
        with pytest.raises(EngineLoadingError):
            await anext(llm.generate("a", GREEDY, "r"))
        await llm.wait_ready()
        await llm.shutdown()
        await llm.shutdown()
        with pytest.raises(EngineDeadError):
            await anext(llm.generate("a", GREEDY, "r"))

    run(test())


def test_closing_the_generator_aborts_within_one_step() -> None:
    async def test() -> None:
        executor, build = gated("a long text that goes on")
        llm = make(build)
        await llm.wait_ready()
        stream = llm.generate("a", GREEDY, "left")
        executor.permits.release()
        await anext(stream)
        other = asyncio.create_task(_drain(llm, "stays"))
        while "stays" not in llm._outputs:
            await asyncio.sleep(0)
        await stream.aclose()
        assert "left" not in llm._outputs
        # the step in flight may still hold it; the one after the abort was read may not
        for _ in range(4):
            executor.permits.release()
            await asyncio.to_thread(executor.ran.acquire)
        assert {i.split("#")[0] for i in executor.running} == {"stays"}
        for _ in range(40):
            executor.permits.release()
        assert await other == "a long text that goes on"
        await llm.shutdown()

    run(test())


async def _drain(llm: AsyncLLM, request_id: str, **kwargs: Any) -> str:
    return "".join([o.text async for out in llm.generate("a", GREEDY, request_id, **kwargs)
                    for o in out.outputs])


def test_a_slow_consumer_gets_merged_deltas() -> None:
    async def test() -> None:
        executor, build = gated("merged")
        llm = make(build)
        await llm.wait_ready()
        stream = llm.generate("a", GREEDY, "r")
        executor.permits.release()
        first = await anext(stream)
        assert first.outputs[0].text == "m"
        for _ in range(6):
            executor.permits.release()
        while llm.num_unfinished_requests:
            await asyncio.sleep(0)
        rest = [out async for out in stream]
        assert [o.outputs[0].text for o in rest] == ["erged"]
        assert rest[0].finished and rest[0].outputs[0].finish_reason == "stop"
        await llm.shutdown()

    run(test())


def test_abort_ends_the_stream_with_a_reason() -> None:
    async def test() -> None:
        executor, build = gated("some text")
        llm = make(build)
        await llm.wait_ready()
        stream = llm.generate("a", GREEDY, "r", output_kind="cumulative")
        executor.permits.release()
        await anext(stream)
        await llm.abort("r")
        last = [out async for out in stream][-1]
        assert last.finished and last.outputs[0].finish_reason == "abort"
        executor.permits.release(9)
        await llm.shutdown()

    run(test())


def test_a_full_queue_is_refused_at_once_and_recovers() -> None:
    async def test() -> None:
        executor, build = gated("t")
        config = config_of(max_num_seqs=1, max_num_waiting=2)
        llm = make(build, config)
        await llm.wait_ready()
        tasks = [asyncio.create_task(_drain(llm, f"r{i}")) for i in range(3)]
        while llm.num_unfinished_requests < 3:
            await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await _drain(llm, "one-too-many")
        executor.permits.release(20)
        # three may be accepted here while the core admits one at a time: none is lost
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(r == "t" or isinstance(r, QueueFullError) for r in results)
        assert "t" in results
        assert await _drain(llm, "later") == "t"
        await llm.shutdown()

    run(test())


def test_a_dead_engine_fails_its_requests_and_says_so_once() -> None:
    async def test() -> None:
        deaths: list[OctavoError] = []
        llm = make(scripted("some text", fail_at=3), on_death=deaths.append)
        await llm.wait_ready()
        results = await asyncio.gather(*(_drain(llm, f"r{i}") for i in range(3)),
                                       return_exceptions=True)
        assert all(isinstance(r, EngineDeadError) for r in results)
        assert "on fire" in str(results[0])
        assert len(deaths) == 1 and llm.errored is deaths[0] and not llm.is_ready
        with pytest.raises(EngineDeadError):
            await _drain(llm, "later")
        await llm.shutdown()

    run(test())


def test_a_load_error_keeps_its_type() -> None:
    def build(config: EngineConfig) -> tuple[EngineCore, EngineReady]:
        raise ModelLoadError("model.gguf: truncated")

    async def test() -> None:
        deaths: list[OctavoError] = []
        llm = make(build, on_death=deaths.append)
        with pytest.raises(ModelLoadError, match="truncated"):
            await llm.wait_ready()
        await llm.shutdown()

    run(test())


def test_drain_lets_requests_finish() -> None:
    async def test() -> None:
        executor, build = gated("finished")
        llm = make(build)
        await llm.wait_ready()
        task = asyncio.create_task(_drain(llm, "r"))
        while not llm.num_unfinished_requests:
            await asyncio.sleep(0)
        stop = asyncio.create_task(llm.shutdown(drain=True))
        await asyncio.sleep(0)
        with pytest.raises(EngineDeadError):
            await _drain(llm, "new")
        executor.permits.release(20)
        await stop
        assert await task == "finished"

    run(test())


def test_a_drain_has_an_end() -> None:
    async def test() -> None:
        executor, build = gated("never ends")
        llm = make(build)
        await llm.wait_ready()
        stream = llm.generate("a", GREEDY, "r")
        executor.permits.release()
        await anext(stream)
        executor.permits.release(1)
        stop = asyncio.create_task(llm.shutdown(drain=True, timeout=0.05))
        last = [out async for out in stream][-1]
        assert last.outputs[0].finish_reason == "abort"
        executor.permits.release(9)
        await stop

    run(test())


def test_ids_must_be_unique_and_errors_come_first() -> None:
    async def test() -> None:
        llm = make(build_fake)
        await llm.wait_ready()
        stream = llm.generate("a", GREEDY, "r")
        await anext(stream)
        if "r" in llm._outputs:
            with pytest.raises(InvalidRequestError, match="in use"):
                await _drain(llm, "r")
        await stream.aclose()
        with pytest.raises(InvalidRequestError, match="empty"):
            await anext(llm.generate("", GREEDY, "s"))
        await llm.shutdown()

    run(test())


def test_metrics_add_up() -> None:
    async def test() -> None:
        llm = make(scripted("abc"))
        await llm.wait_ready()
        await asyncio.gather(*(_drain(llm, f"r{i}") for i in range(4)))
        registry = llm.metrics_registry

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(
                f"octavo:{name}", {"model_name": "fake", "engine": "0", **labels})

        assert value("generation_tokens_total") == 16  # with EOS
        assert value("prompt_tokens_total") == 4
        assert value("request_success_total", finished_reason="stop") == 4
        assert value("time_to_first_token_seconds_count") == 4
        assert value("inter_token_latency_seconds_count") == 12
        assert value("e2e_request_latency_seconds_bucket", le="+Inf") == 4
        assert value("num_requests_running") == 0
        assert (value("iteration_tokens_total_count") or 0) >= 4
        await llm.shutdown()

    run(test())


def test_chat_prompt() -> None:
    async def test() -> None:
        llm = make(build_fake)
        prompt = await llm.chat_prompt([{"role": "user", "content": "hi"}])
        assert prompt["prompt"] == "[user]hi"
        assert prompt["prompt_token_ids"] == list(b"[user]hi")
        with pytest.raises(InvalidRequestError):
            await llm.chat_prompt([])
        await llm.shutdown()

    run(test())


def test_news_that_cannot_be_handled_fail_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        deaths: list[OctavoError] = []
        llm = make(scripted("some text"), on_death=deaths.append)
        await llm.wait_ready()

        def broken(outputs: object) -> list[str]:
            raise RuntimeError("a bug")

        monkeypatch.setattr(llm._outputs, "process", broken)
        results = await asyncio.gather(*(_drain(llm, f"r{i}") for i in range(3)),
                                       return_exceptions=True)
        assert all(isinstance(r, EngineDeadError) for r in results)
        assert "could not be handled" in str(results[0]) and len(deaths) == 1
        await llm.shutdown()

    run(test())


def test_an_id_may_be_used_again_at_once() -> None:
    async def test() -> None:
        executor, build = gated("reused")
        llm = make(build)
        await llm.wait_ready()
        first = llm.generate("a", GREEDY, "r")
        executor.permits.release()
        await anext(first)
        await llm.abort("r")
        assert (await anext(first)).finished
        # the engine may still send news of the first; the second must not take them for its own
        second = asyncio.create_task(_drain(llm, "r"))
        other = asyncio.create_task(_drain(llm, "r-0"))
        while llm.num_unfinished_requests < 2:
            await asyncio.sleep(0)
        await first.aclose()  # ends a request that has ended: not the one that has its id now
        executor.permits.release(40)
        assert await second == "reused" and await other == "reused"
        await llm.shutdown()

    run(test())


def test_what_cannot_be_sent_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsendable(message: object) -> bytes:
        raise OverflowError("too large for the wire")

    async def test() -> None:
        llm = make(scripted("x"))
        await llm.wait_ready()
        with monkeypatch.context() as patch, pytest.raises(OverflowError):
            patch.setattr("octavo.engine.core_client.encode_frame", unsendable)
            await _drain(llm, "r")
        assert llm.num_unfinished_requests == 0
        assert await _drain(llm, "r") == "x"
        await llm.shutdown(drain=True)

    run(test())


def test_more_samples_than_the_queue_can_ever_hold_are_no_full_queue() -> None:
    async def test() -> None:
        llm = make(scripted("x"), config_of(max_num_seqs=2, max_num_waiting=3))
        await llm.wait_ready()
        assert llm.max_num_samples == 5
        with pytest.raises(InvalidRequestError, match="n is 6"):
            await anext(llm.generate("a", SamplingParams(n=6), "r"))
        await llm.shutdown()

    run(test())
