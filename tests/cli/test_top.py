"""`octavo top`: frames of any size, a source that keeps trying, and the program in a terminal."""

import contextlib
import fcntl
import http.server
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.cli.main import main
from octavo.cli.top_screen import screen
from octavo.cli.top_source import TopError, TopSource
from octavo.cli.top_view import TopView
from octavo.config import ServerSection
from octavo.errors import ConfigError
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.event_reader import EventReader

WAIT_S = 60
HELLO = {"model": "m", "version": "0", "block_size": 16, "num_blocks": 40, "max_num_seqs": 4,
         "max_num_batched_tokens": 512, "max_model_len": 256, "backend": "cpu", "threads": 2}
TOTALS = {"steps": 9, "prompt_tokens": 90, "generation_tokens": 40, "prefix_queries": 200,
          "prefix_hits": 50, "preemptions": 3, "copies_on_write": 1, "jump_forward_tokens": 0,
          "finished": 7}


def request_of(slot: int, **changes: Any) -> dict[str, Any]:
    return {"slot": slot, "id": f"cmpl-{slot:032x}", "state": "running", "prompt_tokens": 20,
            "output_tokens": 4, "computed_tokens": 23, "cached_tokens": 16, "age_s": 1.5,
            "num_blocks": 2, "blocks": [slot, 39]} | changes


def state_of(num_requests: int = 3, *, num_nodes: int = 4, **changes: Any) -> dict[str, Any]:
    nodes = [{"id": i, "parent": i // 2 if i > 1 else None, "blocks": 2, "tokens": 32,
              "refs": max(3 - i, 0), "last_used_s": float(max(i - 2, 0))}
             for i in range(1, num_nodes + 1)]
    return {"t": 5.0, "waiting": 0, "running": num_requests,
            "requests": [request_of(i) for i in range(num_requests)],
            "blocks": {"total": 40, "free": 30, "cached": 12, "per_char": 1,
                       "refs": "123+" + "1" * 6 + "c" * 6 + "." * 24},
            "tree": {"nodes": nodes, "left_out": 2}, "totals": TOTALS} | changes


def step_of(n: int, *reqs: tuple[int, int, int], dt: float = 0.02) -> dict[str, Any]:
    return {"n": n, "t": 5.0 + n, "dt": dt, "reqs": list(reqs), "waiting": 0, "running": len(reqs),
            "preempted": [], "finished": []}


def view_of(state: dict[str, Any] | None = None, steps: list[dict[str, Any]] | None = None
            ) -> TopView:
    view = TopView("http://here", clock=lambda: 10.0)
    view.update("hello", HELLO)
    if state is not None:
        view.update("state", state)
    if steps:
        view.update("steps", {"steps": steps, "dropped": 0})
    return view


def lines_of(view: TopView, width: int = 80, height: int = 24, **more: Any) -> list[str]:
    return [line.plain for line in screen(view, width, height, **more)]


def test_a_frame_has_every_part() -> None:
    view = view_of(state_of(), [step_of(1, (0, 20, 0)), step_of(2, (0, 0, 1), (2, 3, 0))])
    lines = lines_of(view)
    text = "\n".join(lines)
    for part in ("octavo top", "cpu, 2 threads", "run 2/4", "hits 25 %", "preempted 3",
                 "done 7", "batch of each step", "10/40 held (25 %), 12 cached", "step time",
                 "median 20.0 ms", "10-20 ms", "prefix tree  6 nodes", "32 tok x2", "└ 32 tok",
                 "0 cmp"):
        assert part in text, part
    [first] = [line for line in lines if line.startswith("      1 ")]
    assert first.split()[-2:] == ["20", "0" + "▒" * 19]
    [second] = [line for line in lines if line.startswith("      2 ")]
    assert second.split()[-1] == "02▒▒", "one token of request 0, a prompt of three of request 2"
    assert "123+111111cccccc" in text


@pytest.mark.parametrize("state", [None, state_of(0, num_nodes=0), state_of(3), state_of(
    200, num_nodes=300, waiting=900, blocks={"total": 40960, "free": 5, "cached": 9,
                                             "per_char": 10, "refs": "1c.+" * 1024})])
def test_frames_of_all_sizes_fit(state: dict[str, Any] | None) -> None:
    steps = [step_of(i, *((s, s, 1) for s in range(64)), dt=0.0005 * 2**(i % 14))
             for i in range(100)]
    for view in (view_of(state), view_of(state, steps)):
        for width, height in ((80, 24), (1, 1), (20, 3), (59, 10), (60, 10), (132, 43), (250, 90)):
            for ascii_only in (False, True):
                lines = screen(view, width, height, ascii_only=ascii_only)
                assert 0 < len(lines) <= height
                assert all(line.cell_len <= width for line in lines)
                if ascii_only:
                    assert all(line.plain.isascii() for line in lines)


def test_long_prompts_share_cells_and_output_tokens_do_not() -> None:
    reqs = [*((slot, 0, 1) for slot in range(30)), (40, 598, 0), (41, 2, 0)]
    view = view_of(state_of(), [step_of(1, *reqs)])
    [line] = [line for line in lines_of(view) if line.startswith("      1 ")]
    per_cell = -(-600 // (80 - 24 - 30))
    outputs = "0123456789abcdefghijklmnopqrst"
    cells = -(-598 // per_cell)
    assert line.split()[-1] == outputs + "E" + "▒" * (cells - 1)
    assert f"▒ = {per_cell} prompt tokens" in "\n".join(lines_of(view))
    assert "letter = request" not in "\n".join(lines_of(view, 30)), "it would not fit"


def test_unused_blocks_do_not_hide_the_others() -> None:
    blocks = {"total": 24000, "free": 23000, "cached": 700, "per_char": 6,
              "refs": "2111c" + "." * 3995}
    lines = lines_of(view_of(state_of(blocks=blocks)), 132, 43)
    [at] = [i for i, line in enumerate(lines) if line.startswith("KV blocks")]
    assert "700 cached, 6 a letter, the rest is free" in lines[at]
    assert lines[at + 1].startswith("2111c....")
    full = blocks | {"refs": "2" + "." * 3998 + "1"}
    lines = lines_of(view_of(state_of(blocks=full)), 132, 43)
    per_char = -(-4000 // (81 * 9))
    assert f"{6 * per_char} a letter" in lines[at] and "rest" not in lines[at]
    assert lines[at + 1].startswith("2...")


def test_rates_follow_time() -> None:
    now = [0.0]
    view = TopView("u", clock=lambda: now[0])
    view.update("hello", HELLO)
    now[0] = 100.0
    view.update("steps", {"steps": [step_of(1, (0, 30, 0), (1, 0, 6))], "dropped": 4})
    assert view.rates() == (10.0, 2.0) and view.num_dropped == 4
    now[0] = 104.0
    assert view.rates() == (0.0, 0.0)
    view.update("lost", "the server is away")
    assert "the server is away; trying again" in lines_of(view)[0]
    view.update("hello", HELLO)
    assert not view.steps and view.problem is None
    with pytest.raises(TopError, match="no use"):
        view.update("failed", TopError("no use"))


class Canned(http.server.BaseHTTPRequestHandler):
    """Answers with what the server's list says, one entry a request."""

    def do_GET(self) -> None:
        status, body = self.server.answers.pop(0)  # type: ignore[attr-defined]
        self.server.headers.append(dict(self.headers))  # type: ignore[attr-defined]
        kind = "text/event-stream" if status == 200 else "application/json"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        """Silence."""


@contextlib.contextmanager
def canned(*answers: tuple[int, str]) -> Iterator[Any]:
    with http.server.HTTPServer(("127.0.0.1", 0), Canned) as server:
        server.answers, server.headers = list(answers), []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def source_of(server: Any, *, keep_trying: bool = True, key: str | None = None) -> TopSource:
    source = TopSource(f"127.0.0.1:{server.server_port}/v1", key, keep_trying=keep_trying)
    source.start()
    return source


def message(name: str, data: object) -> str:
    return f": ping\n\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def test_a_source_tries_again_once_it_was_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cli.top_source._RETRY_S", 0.01)
    loading = json.dumps({"error": {"message": "still loading"}})
    with canned((200, message("hello", HELLO) + message("other", 1) + "event: steps\ndata: {cut"),
                (503, loading), (200, message("hello", HELLO)), (404, "")) as server:
        source = source_of(server, key="secret")
        news = [source.news.get(timeout=WAIT_S) for _ in range(6)]
        names = [name for name, _ in news]
        assert names == ["hello", "lost", "lost", "hello", "lost", "failed"]
        assert news[2][1] == "still loading" and "no live view" in str(news[5][1])
        assert all(h["Authorization"] == "Bearer secret" for h in server.headers)


@pytest.mark.parametrize(("status", "body", "expected"), [
    (401, "", "wants an API key: give it with --api-key"),
    (404, "{}", "has no live view"),
    (503, json.dumps({"error": {"message": "16 live views are open"}}), "16 live views are open"),
    (503, "upstream is away", "status 503"),
])
def test_what_cannot_be_watched_is_one_line(status: int, body: str, expected: str,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    with canned((status, body)) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["top", "--once", "--url", url]) == 1
    err = capsys.readouterr().err
    assert expected in err and err.count("\n") == 1


def test_no_server_no_terminal_no_url(capsys: pytest.CaptureFixture[str]) -> None:
    with canned() as server:
        port = server.server_port
    assert main(["top", "--once", "--url", f"localhost:{port}"]) == 1
    err = capsys.readouterr().err
    assert f"no server answers at http://localhost:{port}" in err and err.count("\n") == 1
    assert main(["top"]) == 1
    assert "use --once" in capsys.readouterr().err
    assert main(["top", "--url", "ftp://x"]) == 1
    assert "ftp://x" in capsys.readouterr().err  # before the terminal: it is wrong on any
    with canned((401, "")) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["top", "--once", "--api-key", "wrong", "--url", url]) == 1
    assert "does not know the API key" in capsys.readouterr().err
    for bad in ("ftp://x", "http://", "http://x:99999", "http://[x"):
        with pytest.raises(ConfigError, match="url is"):
            TopSource(bad, None, keep_trying=False)
    with pytest.raises(ConfigError, match="api_key"):
        TopSource("x", "a\nb", keep_trying=False)


def test_one_frame_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    section = ServerSection(api_keys=("k",))
    engine = fake_async_llm(server=section, step_s=0.002)
    with serving(engine, section) as client:
        key = {"Authorization": "Bearer k"}
        with EventReader(client, headers=key) as reader:
            body = {"prompt": "x" * 40, "max_tokens": 400, "ignore_eos": True}
            thread = threading.Thread(
                target=lambda: client.post("/v1/completions", body, headers=key))
            thread.start()
            reader.until(lambda name, data: name == "steps")
        assert main(["top", "--once", "--url", client.base_url, "--api-key", "k"]) == 0
        lines = capsys.readouterr().out.splitlines()
        thread.join()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "fake-model" in text and "run 1/64" in text and "prefix tree" in text
    assert any(line.startswith("0 ") and " running " in line for line in lines)


@pytest.mark.parametrize("leave", [b"q", b"\x03"])
def test_in_a_terminal(leave: bytes) -> None:
    """It draws, takes a key, and leaves the terminal as it was."""
    engine = fake_async_llm()
    with serving(engine) as client:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo.cli.main", "top", "--url", client.base_url],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color"})
        try:
            shown = b""
            while b"prefix tree" not in shown:
                shown += os.read(ours, 65536)
            assert b"fake-model" in shown and b"\x1b[?1049h" in shown
            if leave == b"q":
                os.write(ours, leave)
            else:  # not its controlling terminal, which would turn the key into the signal
                process.send_signal(signal.SIGINT)
            while b"\x1b[?1049l" not in shown:
                shown += os.read(ours, 65536)
            assert process.wait(WAIT_S) == 0
            assert termios.tcgetattr(theirs) == before
            assert b"Traceback" not in shown
        finally:
            process.kill()
            process.wait()
            os.close(ours)
            os.close(theirs)
