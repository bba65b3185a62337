"""The live view's routes over real sockets: true to what clients see, bounded, and gone at once."""

import concurrent.futures
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.engine.live_feed import MAX_LISTENERS
from octavo.engine.live_watch import NoWatch
from octavo.testing.fake_async_llm import FakeEngine, fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.event_reader import EventReader
from tests.server.http_client import Answer, HttpClient, read_until
from tests.server.process import ServerProcess

LAST = "/octavo/events?interval=0.05"


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return fake_async_llm(num_blocks=300, max_num_seqs=8)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[HttpClient]:
    with serving(engine) as client:
        yield client


def is_quiet(engine: FakeEngine) -> bool:
    """Whether nobody watches the newest core."""
    return isinstance(engine.cores[-1].live, NoWatch)


def is_idle(name: str, data: Any) -> bool:
    return name == "state" and data["running"] == data["waiting"] == 0


def until_finished(reader: EventReader, num_finished: int) -> Any:
    """Reads up to the snapshot of an idle engine that has finished so many requests."""
    return reader.until(lambda name, data: is_idle(name, data)
                        and data["totals"]["finished"] == num_finished)


def load(client: HttpClient, n: int, **fields: Any) -> list[Answer]:
    """n completions at once."""
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        return list(pool.map(
            lambda i: client.complete(f"prompt number {i} " * (1 + i), ignore_eos=True, **fields),
            range(n)))


def test_events_add_up_to_what_clients_are_told(engine: FakeEngine, client: HttpClient) -> None:
    client.complete("prompt number 0 prompt number 0 prompt number 0", max_tokens=2)
    engine.executor.step_s = 0.006
    with EventReader(client, LAST) as one, EventReader(client) as two:
        before = one.until(lambda name, data: name == "state")["totals"]
        two.until(lambda name, data: name == "state")
        usages = [answer.json["usage"] for answer in load(client, 12, max_tokens=60)]
        finished = before["finished"] + 12
        for reader in (one, two):
            until_finished(reader, finished)
    engine.executor.step_s = 0.0
    cached = sum((u.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for u in usages)
    prompt = sum(u["prompt_tokens"] for u in usages)
    output = sum(u["completion_tokens"] for u in usages)
    assert output == 12 * 60
    totals = one.of("state")[-1]["totals"]
    assert cached == totals["prefix_hits"] - before["prefix_hits"]
    for reader in (one, two):
        assert [name for name, _ in reader.seen].index("hello") == 0
        assert sum(frame["dropped"] for frame in reader.of("steps")) == 0
        rows = [row for step in reader.steps for row in step["reqs"]]
        # the token drawn last is never computed
        assert sum(row[1] for row in rows) == prompt - cached
        assert sum(row[2] for row in rows) == output - 12
        numbers = [step["n"] for step in reader.steps]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        check_slots(reader)
        for state in reader.of("state"):
            check_state(state)
    assert one.steps == two.steps
    assert len(one.of("steps")) >= len(two.of("steps"))


def check_slots(reader: EventReader) -> None:
    """A slot is one request's from its first step until it is reported as finished."""
    live: set[int] = set()
    for step in reader.steps:
        live |= {row[0] for row in step["reqs"]}
        assert live >= set(step["finished"])
        live -= set(step["finished"])
    assert not live
    slots: dict[str, set[int]] = {}
    for state in reader.of("state"):
        for request in state["requests"]:
            slots.setdefault(request["id"], set()).add(request["slot"])
    assert slots and all(len(found) == 1 for found in slots.values())


def check_state(state: dict[str, Any]) -> None:
    blocks = state["blocks"]
    refs = blocks["refs"]
    assert len(refs) == blocks["total"] == 300 and blocks["per_char"] == 1
    assert refs.count(".") + refs.count("c") == blocks["free"]
    held = {block for request in state["requests"] for block in request["blocks"]}
    assert len(held) == blocks["total"] - blocks["free"]
    assert sum(node["blocks"] for node in state["tree"]["nodes"]) == blocks["cached"]
    assert len(state["requests"]) == state["waiting"] + state["running"]


def test_a_listener_that_leaves_ends_the_watch(engine: FakeEngine, client: HttpClient) -> None:
    with EventReader(client) as one:
        one.until(lambda name, data: name == "state")
        with EventReader(client) as two:
            two.until(lambda name, data: name == "state")
            assert not is_quiet(engine)
        wait_for(lambda: engine.llm._live.num_listeners == 1)
        client.complete("x", max_tokens=3)
        one.until(lambda name, data: name == "steps")
        assert not is_quiet(engine)
    wait_for(lambda: is_quiet(engine))
    assert engine.llm._live.num_listeners == 0


def test_one_who_does_not_read_holds_up_nobody() -> None:
    """It misses steps, is told how many, and gets the newest snapshot."""
    engine = fake_async_llm(num_blocks=300, step_s=0.001)
    small = 4096
    with (serving(engine, send_buffer_bytes=small) as client,
          EventReader(client, LAST, receive_buffer_bytes=small) as slow):
        slow.until(lambda name, data: name == "state")
        [listener] = engine.llm._live._listeners
        num_finished = 0
        with EventReader(client, LAST) as reader, concurrent.futures.ThreadPoolExecutor() as pool:
            while listener.num_dropped == 0:
                answers = pool.submit(load, client, 8, max_tokens=300)
                num_finished += 8
                until_finished(reader, num_finished)
                assert all(answer.json["usage"]["completion_tokens"] == 300
                           for answer in answers.result())
        state = until_finished(slow, num_finished)
        num_dropped = sum(frame["dropped"] for frame in slow.of("steps"))
        assert num_dropped == listener.num_dropped > 0
        assert len(slow.steps) + num_dropped == state["totals"]["steps"]


def test_snapshot(engine: FakeEngine, client: HttpClient) -> None:
    answer = client.get("/octavo/state")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    check_state(answer.json)
    wait_for(lambda: is_quiet(engine))
    with EventReader(client) as reader:
        state = reader.until(lambda name, data: name == "state")
        assert client.get("/octavo/state").json == state, "the one that is up to date"
    assert client.request("HEAD", "/octavo/events").status == 200


def test_bad_intervals_and_too_many_listeners(engine: FakeEngine, client: HttpClient) -> None:
    for bad in ("0", "0.01", "6", "x", "nan", "-1", ""):
        answer = client.get(f"/octavo/events?interval={bad}")
        assert answer.status == 400 and answer.error()["param"] == "interval"
    readers = [EventReader(client) for _ in range(MAX_LISTENERS)]
    try:
        for path in ("/octavo/events", "/octavo/state"):
            answer = client.get(path)
            assert (answer.status, answer.error()["code"]) == (503, "too_many_listeners")
    finally:
        for reader in readers:
            reader.close()
    wait_for(lambda: engine.llm._live.num_listeners == 0)
    assert client.get("/octavo/state").status == 200


def test_no_text_in_events(client: HttpClient) -> None:
    with EventReader(client, LAST) as reader:
        reader.until(lambda name, data: name == "state")
        client.complete("SAY:zebra crossing|", max_tokens=20)
        reader.until(is_idle)
    text = json.dumps(reader.seen)
    assert "zebra" not in text and "SAY" not in text and "crossing" not in text


def test_keys_and_loading() -> None:
    section = ServerSection(api_keys=("secret",))
    engine = fake_async_llm(server=section, hold_loading=True)
    key = {"authorization": "Bearer secret"}
    with serving(engine, section) as client:
        for path in ("/octavo/events", "/octavo/state"):
            assert client.get(path).status == 401
            answer = client.get(path, headers=key)
            assert (answer.status, answer.error()["code"]) == (503, "engine_loading")
        engine.may_load.set()
        wait_for(lambda: client.get("/ready").status == 200)
        assert client.get("/octavo/state", headers=key).status == 200
        with EventReader(client, headers=key) as reader:
            hello = reader.until(lambda name, data: name == "hello")
        assert (hello["model"], hello["num_blocks"], hello["threads"]) == ("fake-model", 256, 1)
        page = {**key, "origin": "http://evil.example"}
        for path in ("/octavo/events", "/octavo/state"):  # nothing but reading, and no CORS
            assert client.post(path, {}, headers=page).status == 403
            assert client.post(path, {}, headers=key).status == 405


def test_a_restarted_engine_says_hello_again() -> None:
    engine = fake_async_llm(can_restart=True)
    with serving(engine) as client, EventReader(client, LAST) as reader:
        reader.until(lambda name, data: name == "state")
        assert client.complete("FAULT-AT-5", max_tokens=20, ignore_eos=True).status == 503
        reader.until(lambda name, data: name == "hello")
        state = reader.until(lambda name, data: name == "state")
        assert state["totals"]["steps"] == 0
        wait_for(lambda: client.get("/ready").status == 200)
        client.complete("x", max_tokens=4, ignore_eos=True)
        until_finished(reader, 1)
        assert [step["n"] for step in reader.steps[-4:]] == [1, 2, 3, 4]
        assert len(engine.cores) == 2 and not is_quiet(engine)


def test_a_dead_engine_ends_streams_with_an_error() -> None:
    engine = fake_async_llm()
    with serving(engine) as client, EventReader(client, LAST) as reader:
        reader.until(lambda name, data: name == "state")
        assert client.complete("FAULT-AT-5", max_tokens=20, ignore_eos=True).status == 503
        assert reader.until(lambda name, data: "error" in data)["error"]["code"] == "engine_dead"
        assert reader.read() is None
        assert client.get("/octavo/events").status == 503


def test_the_end_does_not_wait_for_one_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page of a computer that sleeps."""
    monkeypatch.setattr("octavo.server.live._LAST_WORD_S", 0.01)
    engine = fake_async_llm(num_blocks=300, step_s=0.001)
    small = 4096
    with serving(engine, send_buffer_bytes=small) as client:
        slow = EventReader(client, LAST, receive_buffer_bytes=small)
        slow.until(lambda name, data: name == "state")
        [listener] = engine.llm._live._listeners
        while listener.num_dropped == 0:  # its connection is full
            load(client, 8, max_tokens=300)
        assert client.complete("FAULT-AT-5", max_tokens=20, ignore_eos=True).status == 503
    # the server has ended, though nothing more was read
    slow.close()


def test_a_real_server_whose_engine_is_killed_and_which_is_stopped(tiny_folder: Any) -> None:
    """It greets the next engine; it ends streams while a request runs, which it waits for."""
    with ServerProcess(str(tiny_folder)) as server:
        server.wait_ready()
        with EventReader(server.client, LAST) as reader:
            reader.until(lambda name, data: name == "state")
            server.engine.kill()
            reader.until(lambda name, data: name == "hello")
            reader.until(lambda name, data: name == "state")
            running = server.client.open_raw("/v1/completions", {
                "prompt": "x", "max_tokens": 480, "ignore_eos": True, "stream": True})
            reader.until(lambda name, data: name == "steps")
            server.signal(signal.SIGTERM)
            while reader.read() is not None:
                pass
            answer = read_until(running, b"data: [DONE]")
        assert b'"length"' in answer and server.wait() == 0
