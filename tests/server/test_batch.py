"""Batch files: every line is answered once, whatever it holds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.config import ServerSection
from octavo.server.app import create_app
from octavo.server.batch import BatchResult, run_lines
from octavo.testing.fake_async_llm import fake_async_llm


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
            "body": {"prompt": "x", "max_tokens": 4, **body}}


def results_of(lines: list[Any], concurrency: int = 4) -> list[BatchResult]:
    data = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in lines]

    async def run() -> list[BatchResult]:
        llm = fake_async_llm().llm
        app = create_app(llm, ServerSection())
        async with app.router.lifespan_context(app):
            await llm.wait_ready()
            return [r async for r in run_lines(app, data, concurrency=concurrency)]

    return asyncio.run(run())


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_every_line_is_answered(concurrency: int) -> None:
    results = results_of([line(f"r{i}", seed=i) for i in range(20)], concurrency)
    assert sorted(r.custom_id or "" for r in results) == sorted(f"r{i}" for i in range(20))
    for result in results:
        assert result.succeeded and result.response is not None and result.error is None
        assert result.response.request_id == result.id
        assert json.loads(bytes(result.response.body))["object"] == "text_completion"
    assert len({r.id for r in results}) == 20


def test_a_refused_request_is_an_answer_and_a_bad_line_an_error() -> None:
    results = results_of([
        line("bad-field", temperature=-1),
        b"not json", b"", b"  ", b"[1]", b'{"custom_id": "no-url"}', b"\xff",
        line("get") | {"method": "GET"}, line("url") | {"url": "/metrics"},
        line("stream", stream=True), line(""), line("twice"), line("twice"),
    ], concurrency=1)
    assert [r.custom_id for r in results] == [
        "bad-field", None, None, None, None, "get", "url", "stream", "", "twice", "twice"]
    refused = results[0].response
    assert refused is not None and refused.status_code == 400 and not results[0].succeeded
    assert json.loads(bytes(refused.body))["error"]["param"] == "temperature"
    errors = [r.error for r in results[1:9]] + [results[10].error]
    assert all(e is not None and e.code == "invalid_line" for e in errors)
    assert "line 2 " in (errors[0].message if errors[0] else "")
    assert results[9].succeeded


def test_run_batch_with_a_model(model_path: Path, tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line(f"r{i}", prompt="1, 2, 3,", temperature=0) for i in range(5)]
    lines.append(line("chat") | {"url": "/v1/chat/completions", "body": {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}})
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("\n".join(json.dumps(item) for item in lines))
    command = ["run-batch", str(model_path), "-i", str(given), "-o", str(out),
               "--kv-cache-memory-bytes", "64m"]
    assert main(command) == 0
    assert "6 requests: 6 answered, 0 failed" in capsys.readouterr().err
    found = {r["custom_id"]: r for r in map(json.loads, out.read_text().splitlines())}
    assert set(found) == {"r0", "r1", "r2", "r3", "r4", "chat"}
    texts = {found[f"r{i}"]["response"]["body"]["choices"][0]["text"] for i in range(5)}
    assert texts == {" 4, "}
    given.write_text(json.dumps(line("r", n=0)))
    assert main(command) == 1
    assert main([*command[:2], "-i", str(tmp_path / "none"), "-o", str(out)]) == 1
    assert "none: No such file" in capsys.readouterr().err
