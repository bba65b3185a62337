"""Servers for tests: the application over a scripted engine in a thread, and one real server."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from octavo.config import ServerSection
from octavo.server.app import create_app
from octavo.server.http_protocol import BoundedHttpProtocol
from octavo.server.run import bind_socket, listen
from octavo.testing.fake_async_llm import FakeEngine
from tests.server.http_client import HttpClient
from tests.server.process import ServerProcess

WAIT_S = 30.0


@contextlib.contextmanager
def serving(engine: FakeEngine, section: ServerSection | None = None, *,
            send_buffer_bytes: int | None = None, **app_options: Any) -> Iterator[HttpClient]:
    """The application over `engine` on a free port."""
    app = create_app(engine.llm, section or ServerSection(), **app_options)
    sock = bind_socket("127.0.0.1", 0)
    if send_buffer_bytes is not None:  # connections inherit it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    listen(sock)
    port = sock.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(
        app, loop="uvloop", http=BoundedHttpProtocol, log_config=None, lifespan="on",
        server_header=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        client = HttpClient("127.0.0.1", port)
        if engine.may_load.is_set():
            wait_for(lambda: client.get("/ready").status == 200)
        yield client
    finally:
        engine.may_load.set()
        engine.executor.run.set()
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool]) -> None:
    """Polls: for what a server does after it has answered."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def real_server(model_path: Path) -> Iterator[ServerProcess]:
    """`octavo serve` of the default model, for the whole session."""
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "512m",
                       "--disable-log-requests") as server:
        server.wait_ready()
        yield server
