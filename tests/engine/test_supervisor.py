"""An engine that dies is started again, one that hangs is ended, a request that lasts is too."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.config_resolve import EngineArgs
from octavo.core.messages import EngineReady
from octavo.engine.core import EngineCore
from octavo.engine.core_client import CoreHost, ThreadHost
from octavo.engine.factory import resolve_args
from octavo.errors import (
    ConfigError,
    EngineDeadError,
    EngineLoadingError,
    ModelLoadError,
    OctavoError,
    RequestTimeoutError,
)
from octavo.testing.byte_tokenizer import byte_tokenizer
from tests.engine.parts import ScriptedExecutor, config_of, core_of, parts_of, ready_of
from tests.engine.test_core_process import LONG, SHORT, pid_of, run, text_of

PARTS = parts_of(byte_tokenizer())
GREEDY = SamplingParams(temperature=0, max_tokens=200)


def server_config(**values: float) -> EngineConfig:
    config = config_of()
    return dataclasses.replace(config, server=dataclasses.replace(config.server, **values))


async def ready_llm(folder: Path, **server: float) -> AsyncLLM:
    """A loaded engine with these values in its server section."""
    config = resolve_args(EngineArgs(model=str(folder), num_blocks=64)).config
    llm = AsyncLLM.from_config(dataclasses.replace(
        config, server=dataclasses.replace(config.server, **server)))
    await llm.wait_ready()
    return llm


async def drain(llm: AsyncLLM, request_id: str) -> str:
    return "".join([o.text async for out in llm.generate("p", GREEDY, request_id)
                    for o in out.outputs])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Engines:
    """Engines in threads, one after the other: those in `failing` (0 is the first) die at step 3,
    those in `broken` cannot load."""

    def __init__(self, config: EngineConfig, *, failing: set[int],
                 broken: frozenset[int] = frozenset()) -> None:
        self.num_started = 0
        self._failing, self._broken = failing, broken
        self.deaths: list[OctavoError] = []
        self._config = config
        self.llm = AsyncLLM.from_parts(config, PARTS, self._start(), restart=self._start,
                                       on_death=self.deaths.append)

    def _start(self) -> CoreHost:
        number = self.num_started
        self.num_started += 1

        def build(config: EngineConfig) -> tuple[EngineCore, EngineReady]:
            if number in self._broken:
                raise ModelLoadError("model.gguf: gone")
            fail_at = 3 if number in self._failing else 0
            return core_of(config, ScriptedExecutor("hello", fail_at=fail_at)), ready_of(config)

        return ThreadHost(self._config, build)


def test_an_engine_that_dies_is_started_again_and_serves() -> None:
    async def test() -> None:
        engines = Engines(server_config(engine_restarts=1), failing={0})
        llm = engines.llm
        await llm.wait_ready()
        results = await asyncio.gather(*(drain(llm, f"r{i}") for i in range(3)),
                                       return_exceptions=True)
        for error in results:
            assert isinstance(error, EngineDeadError) and error.retryable
            assert "on fire" in error.message and "started again" in error.message
        assert not llm.is_ready
        with pytest.raises(EngineLoadingError, match="started again"):
            await drain(llm, "early")
        await until(lambda: llm.is_ready)
        assert await drain(llm, "later") == "hello"
        assert engines.deaths == [] and llm.errored is None and engines.num_started == 2
        await llm.shutdown()

    run(test())


def test_an_engine_that_goes_on_dying_stays_dead() -> None:
    async def test() -> None:
        engines = Engines(server_config(engine_restarts=2), failing={0, 1, 2})
        llm = engines.llm
        await llm.wait_ready()
        for i in range(3):
            await until(lambda: llm.is_ready)
            with pytest.raises(EngineDeadError, match="on fire"):
                await drain(llm, f"r{i}")
        assert engines.num_started == 3
        assert len(engines.deaths) == 1 and llm.errored is engines.deaths[0]
        assert "started again" not in engines.deaths[0].message
        with pytest.raises(EngineDeadError):
            await drain(llm, "later")
        await llm.shutdown()

    run(test())


def test_a_restart_that_cannot_load_counts_as_a_death() -> None:
    async def test() -> None:
        engines = Engines(server_config(engine_restarts=3), failing={0},
                          broken=frozenset({1, 2, 3}))
        await engines.llm.wait_ready()
        with pytest.raises(EngineDeadError):
            await drain(engines.llm, "r")
        await until(lambda: bool(engines.deaths))
        assert isinstance(engines.deaths[0], ModelLoadError) and engines.num_started == 4
        await engines.llm.shutdown()

    run(test())


def test_an_engine_that_never_loaded_is_not_tried_again() -> None:
    async def test() -> None:
        engines = Engines(server_config(engine_restarts=3), failing=set(), broken=frozenset({0}))
        with pytest.raises(ModelLoadError):
            await engines.llm.wait_ready()
        assert engines.num_started == 1 and len(engines.deaths) == 1
        await engines.llm.shutdown()

    run(test())


def test_a_shutdown_during_a_restart_leaves_no_engine(tiny_folder: Path) -> None:
    async def test() -> None:
        llm = AsyncLLM(str(tiny_folder), num_blocks=64)
        await llm.wait_ready()
        stream = llm.generate("prompt", LONG, "r")
        await anext(stream)
        os.kill(pid_of(llm), signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        await llm.shutdown()
        assert not Path(f"/proc/{pid_of(llm)}").exists()

    run(test())


def test_an_engine_that_hangs_is_ended_and_started_again(tiny_folder: Path) -> None:
    async def test() -> None:
        llm = await ready_llm(tiny_folder, engine_step_timeout_s=0.5)
        wanted = await text_of(llm, "before", SHORT)
        pid = pid_of(llm)
        stream = llm.generate("prompt", LONG, "r")
        await anext(stream)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match=r"no sign of life for 0\.5 s"):
            async for _ in stream:
                pass
        await until(lambda: llm.is_ready)
        assert pid_of(llm) != pid and not Path(f"/proc/{pid}").exists()
        assert await text_of(llm, "after", SHORT) == wanted
        await llm.shutdown()

    run(test())


def test_a_request_that_takes_too_long_ends_and_others_do_not(tiny_folder: Path) -> None:
    async def test() -> None:
        llm = await ready_llm(tiny_folder, request_timeout_s=0.3)
        os.kill(pid_of(llm), signal.SIGSTOP)  # nothing can be quick enough
        try:
            with pytest.raises(RequestTimeoutError, match=r"0\.3 s"):
                await text_of(llm, "slow", LONG)
        finally:
            os.kill(pid_of(llm), signal.SIGCONT)
        assert llm.num_unfinished_requests == 0
        assert len(await text_of(llm, "quick", SamplingParams(max_tokens=1))) == 1
        await until(lambda: llm._stats.num_running == 0)
        await llm.shutdown()

    run(test())


def test_a_bad_number_of_restarts(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="engine_restarts is -1"):
        AsyncLLM(str(tiny_folder), num_blocks=64, engine_restarts=-1)
