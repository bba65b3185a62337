"""Many clients that come, stay or leave as they like: nothing fails, nothing is lost.

Every client checks its own answers; at the end the KV cache and the queues are empty, and memory
has not grown.
"""

import dataclasses
import random
import threading
import time

import psutil
import pytest

from tests.server.conftest import wait_for
from tests.server.http_client import HttpClient
from tests.server.process import ServerProcess

NUM_CLIENTS = 64
# the head of most prompts is shared, so that blocks are too
SHARED = "The river runs past the old mill and the green hill. " * 4
KV_BYTES = "24m"  # about 1,090 tokens: far short of what 64 clients want


@dataclasses.dataclass(slots=True)
class _Tally:
    """What the clients saw."""

    whole: int = 0
    streamed: int = 0
    left: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


class _Visitor(threading.Thread):
    """One client. Its random choices are its own."""

    def __init__(self, client: HttpClient, number: int, stop: threading.Event,
                 tally: _Tally) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._random = random.Random(number)
        self._leaving = stop
        self._tally = tally

    def run(self) -> None:
        while not self._leaving.is_set():
            try:
                self._visit()
            except Exception as error:
                self._tally.problems.append(f"{type(error).__name__}: {error}")
                return

    def _visit(self) -> None:
        pick = self._random
        words = " ".join(pick.choice(("lamp", "chair", "stone", "tree")) for _ in range(
            pick.randrange(1, 60)))
        body = {
            "prompt": (SHARED if pick.random() < 0.7 else "") + words,
            "max_tokens": pick.randrange(1, 32), "temperature": pick.choice((0, 1)),
            "n": pick.choice((1, 1, 1, 2)), "stream": pick.random() < 0.6, "ignore_eos": True,
        }
        if pick.random() < 0.35:
            self._leave(body)
        elif body["stream"]:
            answer = self._client.post("/v1/completions", body)
            assert answer.status == 200 and answer.is_done, answer.text[-200:]
            self._tally.streamed += 1
        else:
            answer = self._client.post("/v1/completions", body)
            assert answer.status == 200, answer.text
            used = answer.json["usage"]["completion_tokens"]
            assert used == body["max_tokens"] * body["n"], answer.text  # type: ignore[operator]
            self._tally.whole += 1

    def _leave(self, body: dict[str, object]) -> None:
        with self._client.open_raw("/v1/completions", body) as sock:
            sock.settimeout(self._random.random() * 0.5)
            try:
                sock.recv(self._random.choice((1, 4096)))
            except TimeoutError:
                pass
        self._tally.left += 1


def _memory(server: ServerProcess) -> dict[str, int]:
    return {"server": psutil.Process(server.process.pid).memory_info().rss,
            "engine": server.engine.memory_info().rss}


def _soak(warm_up_s: float, seconds: float) -> None:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", KV_BYTES,
                       "--disable-log-requests", "--disable-log-stats") as server:
        server.wait_ready()
        client = server.client
        stop, tally = threading.Event(), _Tally()
        visitors = [_Visitor(client, i, stop, tally) for i in range(NUM_CLIENTS)]
        for visitor in visitors:
            visitor.start()
        time.sleep(warm_up_s)  # the length of the soak, not a wait for something
        before = _memory(server)
        time.sleep(seconds)
        after = _memory(server)
        stop.set()
        for visitor in visitors:
            visitor.join(60)
            assert not visitor.is_alive(), "a client got no answer"
        assert not tally.problems, tally.problems[:5]
        assert min(tally.whole, tally.streamed, tally.left) > 10, tally
        wait_for(lambda: client.metric("octavo:num_requests_running") == 0)
        assert client.metric("octavo:num_requests_waiting") == 0
        # cached blocks count as free: what an idle engine uses is a leak
        assert client.metric("octavo:kv_cache_usage_perc") == 0
        assert client.metric("octavo:prefix_cache_hits_total") > 0
        for name, size in before.items():
            assert after[name] < size * 1.05, f"{name} grew from {size} to {after[name]} bytes"
        assert server.stderr == ""


def test_soak() -> None:
    _soak(warm_up_s=6, seconds=10)


@pytest.mark.full
def test_soak_ten_minutes() -> None:
    _soak(warm_up_s=60, seconds=600)
