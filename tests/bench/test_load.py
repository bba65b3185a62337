"""The load generator, alone and against the real server application over a scripted engine."""

import asyncio
import time

import pytest

from octavo.bench.datasets import BenchRequest
from octavo.bench.http_client import HttpClient
from octavo.bench.load import RequestRecord, run_load
from octavo.bench.openai_client import OpenAISender, served_model
from octavo.bench.process_cpu import tree_cpu_s
from octavo.bench.serving_report import serving_report
from octavo.errors import ConfigError, OctavoError
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving


def _requests(count: int, *, length: int = 6, max_tokens: int = 5) -> list[BenchRequest]:
    return [BenchRequest([65 + i % 26] * length, max_tokens) for i in range(count)]


def test_concurrency_is_bounded_and_order_kept() -> None:
    running = peak = 0

    async def send(request: BenchRequest) -> RequestRecord:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return RequestRecord(num_prompt_tokens=request.prompt_token_ids[0])

    requests = [BenchRequest([i], 1) for i in range(20)]
    result = asyncio.run(run_load(requests, send, due_s=[0.0] * 20, max_concurrency=3))
    assert peak == result.peak_concurrency == 3
    assert [r.num_prompt_tokens for r in result.records] == list(range(20))
    free = asyncio.run(run_load(requests, send, due_s=[0.0] * 20))
    assert free.peak_concurrency == 20
    with pytest.raises(ConfigError, match="max_concurrency"):
        asyncio.run(run_load(requests, send, due_s=[0.0] * 20, max_concurrency=0))


@pytest.mark.parametrize(("endpoint", "prompt_format"), [
    ("/v1/completions", "ids"), ("/v1/completions", "text"), ("/v1/chat/completions", "text"),
])
def test_load_on_a_real_server(endpoint: str, prompt_format: str) -> None:
    async def drive(url: str) -> None:
        async with HttpClient(url) as client:
            assert await served_model(client) == "fake-model"
            sender = OpenAISender(client, model="fake-model", endpoint=endpoint,
                                  prompt_format=prompt_format,  # type: ignore[arg-type]
                                  sampling={"temperature": 0.0, "ignore_eos": True})
            result = await run_load(_requests(8), sender.send, due_s=[0.0] * 8, max_concurrency=4)
        report = serving_report(result, slos={"e2el": 60_000})
        assert (report.completed, report.failed) == (8, 0), report.errors
        assert report.total_output_tokens == 40
        if prompt_format == "ids":
            assert report.total_input_tokens == 48
        for record in result.records:
            assert 0 < record.ttft_s <= record.latency_s
            assert record.latency_s == pytest.approx(record.ttft_s + sum(record.itl_s))
            assert len(record.itl_s) <= 4
        assert report.request_goodput == pytest.approx(report.request_throughput)
        assert report.client_cpu_s > 0

    engine = fake_async_llm()
    with serving(engine) as server:
        asyncio.run(drive(server.base_url))


def test_failures_are_records() -> None:
    async def drive(url: str) -> list[str | None]:
        async with HttpClient(url) as client:
            errors = []
            for model, tokens in (("no-such-model", 5), ("fake-model", -1)):
                sender = OpenAISender(client, model=model)
                errors.append((await sender.send(BenchRequest([1, 2], tokens))).error)
            faulty = OpenAISender(client, model="fake-model", prompt_format="ids")
            ids = list(b"FAULT-AT-5")
            errors.append((await faulty.send(BenchRequest(ids, 20))).error)
        return errors

    with serving(fake_async_llm()) as server:
        missing, refused, failed = asyncio.run(drive(server.base_url))
        url = server.base_url
    assert missing is not None and missing.startswith("HTTP 404")
    assert refused is not None and refused.startswith("HTTP 400")
    assert failed is not None and "server" in failed
    gone = asyncio.run(_one(url))
    assert gone.error is not None and "Error" in gone.error
    with pytest.raises(OctavoError, match="does not answer"):
        asyncio.run(_ask(url))


async def _one(url: str) -> RequestRecord:
    async with HttpClient(url) as client:
        return await OpenAISender(client, model="m").send(BenchRequest([1], 1))


async def _ask(url: str) -> str:
    async with HttpClient(url) as client:
        return await served_model(client)


def test_chat_takes_no_ids() -> None:
    with pytest.raises(ConfigError, match="prompt_format"):
        OpenAISender(HttpClient("http://x"), model="m", endpoint="/v1/chat/completions",
                     prompt_format="ids")


def test_a_slow_answer_times_out() -> None:
    engine = fake_async_llm()
    engine.executor.run.clear()  # steps wait: no token ever comes

    async def drive(url: str) -> RequestRecord:
        async with HttpClient(url) as client:
            sender = OpenAISender(client, model="fake-model", timeout_s=0.05)
            return await sender.send(BenchRequest([65], 3))

    with serving(engine) as server:
        record = asyncio.run(drive(server.base_url))
    assert record.error is not None and "0.05 s" in record.error


def test_cpu_time_of_a_process_tree() -> None:
    import os

    before = tree_cpu_s(os.getpid())
    spent = time.process_time()
    while time.process_time() - spent < 0.05:
        pass
    assert tree_cpu_s(os.getpid()) - before >= 0.03  # counted in ticks of 10 ms
    with pytest.raises(ConfigError, match="no such process"):
        tree_cpu_s(2**30)
