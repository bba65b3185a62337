"""The life of an `octavo serve` process: signals, death of the engine, ports, broken models."""

import signal
import socket
from pathlib import Path

from tests.server.conftest import wait_for
from tests.server.http_client import read_until
from tests.server.process import ServerProcess

SMALL = ("--kv-cache-memory-bytes", "64m")
STREAM = {"prompt": "Count: 1 2 3", "max_tokens": 60, "ignore_eos": True, "stream": True,
          "temperature": 0}
ONCE = {"prompt": "Count: 1 2 3", "max_tokens": 8, "temperature": 0, "seed": 1}


def _ended(server: ServerProcess) -> str:
    """The one line on stderr of a server that ended by itself."""
    assert server.wait() == 1
    lines = server.stderr.splitlines()
    told = [line for line in lines if line.startswith("octavo: error: ")]
    assert len(told) == 1, server.stderr
    assert "Traceback" not in server.stderr
    return told[0]


def test_banner_drain_and_exit_status() -> None:
    with ServerProcess("smollm2-135m", *SMALL) as server:
        server.wait_ready()
        assert f"open {server.client.base_url}/ in a browser" in server.stdout
        assert '"temperature": 0.2, "max_tokens": 128}' in server.stdout
        assert "curl -N" in server.stdout and "SmolLM2-135M-Instruct" in server.stdout
        with server.client.open_raw("/v1/completions", STREAM) as sock:
            data = read_until(sock, b"data: ")
            server.signal(signal.SIGINT)
            data += read_until(sock, b"[DONE]")  # the running request is finished
        assert b'"finish_reason":"length"' in data
        assert server.wait() == 0
        assert "stopping when 1 running requests are done" in server.stderr
        assert "POST /v1/completions 200" in server.stderr  # the log line of the request


def test_sigterm_while_idle() -> None:
    with ServerProcess("smollm2-135m", *SMALL, "--disable-log-requests") as server:
        server.wait_ready()
        engine = server.engine
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.stderr == "octavo: stopped\n"
        assert not engine.is_running()


def test_a_second_interrupt_stops_at_once() -> None:
    with ServerProcess("smollm2-135m", *SMALL) as server:
        server.wait_ready()
        engine = server.engine
        body = STREAM | {"max_tokens": 2000}
        with server.client.open_raw("/v1/completions", body) as sock:
            read_until(sock, b"data: ")
            server.signal(signal.SIGINT)
            wait_for(lambda: "stopping when" in server.stderr)
            server.signal(signal.SIGINT)
            assert server.wait() == 130
        wait_for(lambda: not engine.is_running())  # no orphan


def test_the_drain_has_an_end() -> None:
    with ServerProcess("smollm2-135m", *SMALL, "--shutdown-timeout", "0.2") as server:
        server.wait_ready()
        body = STREAM | {"max_tokens": 2000}
        with server.client.open_raw("/v1/completions", body) as sock:
            read_until(sock, b"data: ")
            server.signal(signal.SIGINT)
            # what is cut off is told so
            assert b"shutting down" in read_until(sock, b'data: {"error"') + sock.recv(4096)
        assert server.wait() == 0


def test_a_killed_engine_fails_its_requests_and_is_started_again() -> None:
    with ServerProcess("smollm2-135m", *SMALL, "--disable-log-requests") as server:
        server.wait_ready()
        wanted = server.client.post("/v1/completions", ONCE).json["choices"]
        first = server.engine
        with server.client.open_raw("/v1/completions", STREAM | {"max_tokens": 2000}) as sock:
            read_until(sock, b"data: ")
            first.kill()
            assert b"started again" in read_until(sock, b'"code":"engine_dead"')
        wait_for(lambda: server.client.get("/ready").status == 200)
        assert server.engine.pid != first.pid
        assert server.client.post("/v1/completions", ONCE).json["choices"] == wanted
        assert "octavo:engine_restarts_total{" in server.client.get("/metrics").text
        assert "SIGKILL" in server.stderr and "restart 1 of at most 1" in server.stderr
        server.engine.kill()  # once too often
        assert "SIGKILL" in _ended(server)


def test_without_restarts_a_killed_engine_ends_the_server() -> None:
    with ServerProcess("smollm2-135m", *SMALL, "--disable-log-requests", "--disable-log-stats",
                       "--engine-restarts", "0") as server:
        server.wait_ready()
        body = STREAM | {"max_tokens": 2000}
        with server.client.open_raw("/v1/completions", body) as sock:
            read_until(sock, b"data: ")
            server.engine.kill()
            assert b'data: {"error"' in read_until(sock, b'"code":"engine_dead"')
        assert "SIGKILL" in _ended(server)
        assert len(server.stderr.splitlines()) == 1


def test_a_port_in_use_is_told_before_anything_loads(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # the model does not exist: nothing looked at it
        with ServerProcess(str(tmp_path / "none.gguf"), port=port) as server:
            line = _ended(server)
    assert f"port {port}" in line and "in use" in line


def test_a_broken_model_file(tmp_path: Path, model_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with open(model_path, "rb") as file:
        cut.write_bytes(file.read(1 << 20))
    with ServerProcess(str(cut)) as server:
        assert "cut.gguf" in _ended(server)
    with ServerProcess(str(tmp_path / "none.gguf")) as server:
        assert "no such file" in _ended(server)


def test_impossible_arguments() -> None:
    with ServerProcess("smollm2-135m", "--max-model-len", "1000000") as server:
        assert "--max-model-len is 1000000: " in _ended(server)
    with ServerProcess("smollm2-135m", "--chat-template", "/nowhere.jinja") as server:
        assert "/nowhere.jinja" in _ended(server)
