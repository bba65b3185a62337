"""The engine in its own process, on a tiny real graph: life and death."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.engine.core_client import ProcessHost
from octavo.errors import EngineDeadError, ModelLoadError, OctavoError

LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
DEADLINE_S = 60


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, DEADLINE_S)

    asyncio.run(bounded())


def pid_of(llm: AsyncLLM) -> int:
    assert isinstance(llm._engine.host, ProcessHost)
    return llm._engine.host.pid


async def text_of(llm: AsyncLLM, request_id: str, params: SamplingParams) -> list[int]:
    return [t async for out in llm.generate("prompt", params, request_id)
            for o in out.outputs for t in o.token_ids]


def wait_gone(pid: int) -> None:
    """Until the process is gone (a zombie counts as gone)."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def test_life_signals_and_end(tiny_folder: Path) -> None:
    async def test() -> None:
        llm = AsyncLLM(str(tiny_folder), num_blocks=64)
        info = await llm.wait_ready()
        assert info.max_model_len == 512 and info.vocab_size == 260
        pid = pid_of(llm)
        # Ctrl-C reaches the whole group: the engine leaves the decision to its front end
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        one, two = await asyncio.gather(text_of(llm, "a", SHORT), text_of(llm, "b", SHORT))
        assert one == two and len(one) == 5
        await llm.shutdown()
        wait_gone(pid)

    run(test())


def test_an_idle_engine_uses_no_cpu(tiny_folder: Path) -> None:
    def cpu_ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def wakeups(pid: int) -> int:
        found = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    found += int(line.split()[1])
        return found

    async def test() -> None:
        llm = AsyncLLM(str(tiny_folder), num_blocks=64)
        await llm.wait_ready()
        await text_of(llm, "a", SHORT)
        pid = pid_of(llm)
        await asyncio.sleep(0.3)  # threads of the pool may spin a little before they sleep
        before = cpu_ticks(pid), wakeups(pid)
        await asyncio.sleep(0.5)
        assert cpu_ticks(pid) - before[0] <= 1
        assert wakeups(pid) - before[1] <= 2, "something polls"
        await llm.shutdown()

    run(test())


def test_a_killed_engine_fails_its_requests_at_once(tiny_folder: Path) -> None:
    async def test() -> None:
        deaths: list[OctavoError] = []
        llm = AsyncLLM(str(tiny_folder), num_blocks=64, engine_restarts=0,
                       on_death=deaths.append)
        await llm.wait_ready()
        stream = llm.generate("prompt", LONG, "r")
        await anext(stream)
        os.kill(pid_of(llm), signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            async for _ in stream:
                pass
        assert len(deaths) == 1 and not llm.is_ready
        await llm.shutdown()

    run(test())


def test_a_model_that_breaks_in_the_engine_reports_its_error(tiny_folder: Path,
                                                             tmp_path: Path) -> None:
    async def test() -> None:
        good = AsyncLLM(str(tiny_folder), num_blocks=64)
        config = good.config
        await good.wait_ready()
        await good.shutdown()
        # the file changes between the front end's look and the engine's
        import dataclasses

        bad = dataclasses.replace(config, model=dataclasses.replace(
            config.model, path=str(tmp_path / "gone.gguf")))
        host = ProcessHost(bad)
        from octavo.engine.factory import load_front_end

        llm = AsyncLLM.from_parts(config, load_front_end(config), host)
        with pytest.raises((ModelLoadError, OctavoError), match="gone"):
            await llm.wait_ready()
        await llm.shutdown()

    run(test())


def test_the_engine_dies_with_its_parent(tiny_folder: Path) -> None:
    code = (
        "import asyncio, os, signal, sys\n"
        "from octavo import AsyncLLM\n"
        "async def main():\n"
        f"    llm = AsyncLLM({str(tiny_folder)!r}, num_blocks=64)\n"
        "    await llm.wait_ready()\n"
        "    print(llm._engine.host.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_gone(int(done.stdout))


def test_a_hung_engine_cannot_hold_up_the_shutdown(tiny_folder: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.engine import core_client

    monkeypatch.setattr(core_client, "_EXIT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(core_client, "_DRAIN_TIMEOUT_S", 0.1)

    async def test() -> None:
        llm = AsyncLLM(str(tiny_folder), num_blocks=64)
        await llm.wait_ready()
        pid = pid_of(llm)
        os.kill(pid, signal.SIGSTOP)
        streams = [llm.generate(list(b"p" * 300), SHORT, str(i)) for i in range(2000)]
        tasks = [asyncio.ensure_future(anext(s)) for s in streams]
        while llm.num_unfinished_requests < len(tasks):  # more than the socket takes
            await asyncio.sleep(0)
        await llm.shutdown()
        for output in await asyncio.gather(*tasks):
            assert output.outputs[0].finish_reason == "abort"
        assert not Path(f"/proc/{pid}").exists(), "killed and reaped"

    run(test())


def test_an_engine_that_fails_to_load_is_reaped(tiny_folder: Path, tmp_path: Path) -> None:
    async def test() -> None:
        import shutil

        folder = tmp_path / "model"
        shutil.copytree(tiny_folder, folder)
        gone = asyncio.Event()
        llm = AsyncLLM(str(folder), num_blocks=64, on_death=lambda error: gone.set())
        shutil.rmtree(folder)
        with pytest.raises(OctavoError):
            await llm.wait_ready()
        await gone.wait()
        client = llm._engine.client
        assert client is not None and client._reader_task is not None
        await client._reader_task
        assert not Path(f"/proc/{pid_of(llm)}").exists()

    run(test())


def test_a_front_end_that_cannot_load_leaves_no_engine(
        tiny_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for")
    pids: list[int] = []
    start = ProcessHost.__init__

    def noted(self: ProcessHost, config: Any) -> None:
        start(self, config)
        pids.append(self.pid)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OctavoError):
        patch.setattr(ProcessHost, "__init__", noted)
        AsyncLLM(str(tiny_folder), num_blocks=64, chat_template=broken)
    assert len(pids) == 1 and not Path(f"/proc/{pids[0]}").exists()
