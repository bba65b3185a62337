"""`python -m benchmarks.live_view`: what the live view costs the server while somebody watches.

Streams decode without a pause, each answered request followed by the next. The time is cut into
windows of equally many tokens, alternately with a listener at /octavo/events and without, and the
CPU time of server and engine in each window is taken. Load generator and listener share this
process, which is not counted. Reported: the median of the pairs' ratios of CPU-seconds a token,
with a 95 % interval from order statistics.
"""

import asyncio
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.common import facts, model_path, parser, write_json
from benchmarks.server_process import ServerProcess
from octavo.bench.datasets import BenchRequest, Vocabulary, random_requests
from octavo.bench.http_client import HttpClient
from octavo.bench.openai_client import OpenAISender, served_model
from octavo.bench.process_cpu import tree_pids
from octavo.bench.stats import median_interval

_VOCABULARY = Vocabulary(30000, 300)  # ids of words in the common vocabularies
_READ_BYTES = 1 << 20
_KEPT_BYTES = 1 << 16
_TIMEOUT_S = 120.0


@dataclasses.dataclass(slots=True, frozen=True)
class Window:
    """CPU-seconds of server and engine, seconds, and the tokens that came meanwhile."""

    tokens: int
    seconds: float
    cpu_s: float


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = parser("live_view", __doc__)
    made.add_argument("--streams", type=int, default=32, metavar="N")
    made.add_argument("--input-len", type=int, default=32, metavar="N")
    made.add_argument("--output-len", type=int, default=256, metavar="N")
    made.add_argument("--window", type=int, default=1024, metavar="TOKENS")
    made.add_argument("--listeners", type=int, default=1, metavar="N")
    made.add_argument("--pairs", type=int, default=20, metavar="N")
    args = made.parse_args(argv)
    before = os.getloadavg()[0]
    model = model_path(args.model)
    with ServerProcess(model, "--num-threads", str(args.threads)) as server:
        server.wait_ready()
        load = _Load(args.streams, args.input_len, args.output_len)
        opened, closed = asyncio.run(measure(
            load, server, tokens=args.window, pairs=args.pairs, listeners=args.listeners))
    summary = summarize(opened, closed)
    print(text(summary, args.streams))
    write_json(args.json, "live_view", {
        "facts": facts(before), "model": Path(model).name, "streams": args.streams,
        "input_len": args.input_len, "output_len": args.output_len, "listeners": args.listeners,
        **summary, "open": [dataclasses.asdict(window) for window in opened],
        "closed": [dataclasses.asdict(window) for window in closed]})
    return 0


class _Load:
    """Streams that go on until they are cancelled; counts the pieces of all answers."""

    def __init__(self, streams: int, input_len: int, output_len: int) -> None:
        self._streams = streams
        self._lengths = input_len, output_len
        self.count = self._target = 0
        self._reached = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, base_url: str) -> AsyncIterator[None]:
        async with HttpClient(base_url) as client:
            sender = OpenAISender(
                client, model=await served_model(client), prompt_format="ids",
                sampling={"temperature": 0.0, "ignore_eos": True}, on_piece=self._on_piece)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._stream(sender, i)) for i in range(self._streams)]
                yield
                for task in tasks:
                    task.cancel()

    async def _stream(self, sender: OpenAISender, index: int) -> None:
        input_len, output_len = self._lengths
        for number in range(1 << 20):
            # the first answers end one after the other, and so do those behind them
            length = output_len if number else max(output_len * (index + 1) // self._streams, 1)
            [request] = random_requests(_VOCABULARY, num_prompts=1, input_len=input_len,
                                        output_len=length, seed=1000 * index + number)
            record = await sender.send(request)
            if record.error is not None:
                raise RuntimeError(record.error)

    def _on_piece(self, request: BenchRequest) -> None:
        self.count += 1
        if self.count >= self._target:
            self._reached.set()

    async def tokens(self, count: int) -> None:
        """Until so many more have come."""
        self._target = self.count + count
        self._reached.clear()
        async with asyncio.timeout(_TIMEOUT_S):
            await self._reached.wait()


async def measure(load: _Load, server: ServerProcess, *, tokens: int, pairs: int,
                  listeners: int) -> tuple[list[Window], list[Window]]:
    """Windows with the live view open, and closed; which comes first alternates."""
    opened: list[Window] = []
    closed: list[Window] = []
    pids = tree_pids(server.pid)
    async with load.running(server.base_url):
        await load.tokens(4 * tokens)  # until all streams decode, and the first have ended
        for pair in range(pairs):
            for is_open in (False, True) if pair % 2 else (True, False):
                count, started, cpu_s = load.count, time.perf_counter(), _cpu_s(pids)
                async with listening(server.base_url, listeners if is_open else 0):
                    await load.tokens(tokens)
                window = Window(load.count - count, time.perf_counter() - started,
                                _cpu_s(pids) - cpu_s)
                (opened if is_open else closed).append(window)
    return opened, closed


def _cpu_s(pids: list[int]) -> float:
    """CPU time of processes, to the nanosecond: clock_getcpuclockid(3)."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


@contextlib.asynccontextmanager
async def listening(base_url: str, count: int) -> AsyncIterator[None]:
    """So many listeners, which read and forget. Raises RuntimeError when one hears of no step."""
    host, _, port = base_url.removeprefix("http://").partition(":")
    tasks, writers = [], []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(f"GET /octavo/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            tasks.append(asyncio.create_task(_read(reader)))
        yield
    finally:
        for writer in writers:
            writer.close()
    for heard in await asyncio.gather(*tasks):
        if b"event: steps" not in heard:
            raise RuntimeError("a listener heard of no step")


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Reads to the end; the beginning of it."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            found = (found + data)[:_KEPT_BYTES]
    return found


def summarize(opened: list[Window], closed: list[Window]) -> dict[str, Any]:
    """The pairs' ratios of CPU-seconds a token, their median and its interval."""
    per_token = [[w.cpu_s / w.tokens for w in windows] for windows in (opened, closed)]
    ratios = [with_view / without for with_view, without in zip(*per_token)]
    return {
        "pairs": len(ratios), "ratio": statistics.median(ratios),
        "interval": median_interval(ratios), "ratios": ratios,
        "open_cpu_ms_per_token": 1000 * statistics.median(per_token[0]),
        "closed_cpu_ms_per_token": 1000 * statistics.median(per_token[1]),
        "open_tokens_per_s": statistics.median(w.tokens / w.seconds for w in opened),
        "closed_tokens_per_s": statistics.median(w.tokens / w.seconds for w in closed),
    }


def text(found: dict[str, Any], streams: int) -> str:
    """For people."""
    low, high = found["interval"]
    return (f"| {streams} streams | CPU-ms a token | tokens/s |\n|---|---:|---:|\n"
            f"| live view open | {found['open_cpu_ms_per_token']:.3f} | "
            f"{found['open_tokens_per_s']:.0f} |\n"
            f"| closed | {found['closed_cpu_ms_per_token']:.3f} | "
            f"{found['closed_tokens_per_s']:.0f} |\n\n"
            f"open against closed, CPU a token, median of {found['pairs']} pairs: "
            f"{100 * (found['ratio'] - 1):+.2f} % (95 %: {100 * (low - 1):+.2f} to "
            f"{100 * (high - 1):+.2f} %)\n")


if __name__ == "__main__":
    sys.exit(main())
