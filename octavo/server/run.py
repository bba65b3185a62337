"""Runs the application on a socket with uvicorn: signals, draining, and the exit status.

The only file that knows the process around the server.
"""

import asyncio
import contextlib
import logging
import operator
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import NoReturn

import uvicorn
from starlette.applications import Starlette

from octavo.config import ServerSection
from octavo.errors import ConfigError, OctavoError
from octavo.server.http_protocol import bounded_protocol, connections_allowed
from octavo.server.state import ServerState

logger = logging.getLogger("octavo.server")

BACKLOG = 2048
# clients reuse connections; longer than the pools of common clients keep them
_KEEP_ALIVE_S = 65
# after the engine died, how long error answers may take to leave
_FAREWELL_S = 5.0
_STOPPED_AT_ONCE = 130  # what shells call "ended by Ctrl-C"


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError: one line for the user."""
    sock = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        if sock is not None:
            sock.close()
        raise _bind_error(host, port, error) from None
    return sock


def listen(sock: socket.socket) -> None:
    """Lets clients connect. Raises ConfigError if another server was quicker."""
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise _bind_error(host, port, error) from None


def _bind_error(host: str, port: int, error: Exception) -> ConfigError:
    if isinstance(error, OSError) and error.errno == 98:  # EADDRINUSE
        return ConfigError(f"port {port} on {host} is in use: stop the other server, or choose "
                           "another with --port", param="port")
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"cannot listen on {host} port {port}: {reason}", param="host")


class ServerRun:
    """One run of a server. Give `engine_failed` to the engine as its on_death, then `run`."""

    def __init__(self, section: ServerSection, *,
                 phrase: Callable[[OctavoError], str] = operator.attrgetter("message")) -> None:
        """phrase: how to put why the engine failed."""
        self._section = section
        self._phrase = phrase
        self._exit_status = 0
        self._server: _Server | None = None
        self._state: ServerState | None = None
        self._stopping: asyncio.Task[None] | None = None

    def run(self, app: Starlette, sock: socket.socket) -> int:
        """Serves until a signal or the engine's end; returns the exit status.

        0 after a drain; 1 if the engine died or could not load, told in one line on stderr.
        """
        self._state = app.state.server
        config = uvicorn.Config(
            app, loop="uvloop", http=bounded_protocol(connections_allowed()), ws="none",
            lifespan="on", log_config=None, access_log=False, server_header=False, backlog=BACKLOG,
            root_path=self._section.root_path, timeout_keep_alive=_KEEP_ALIVE_S,
            # the drain has ended by then; what is left is clients that do not read
            timeout_graceful_shutdown=int(self._section.shutdown_timeout_s + _FAREWELL_S) + 1,
        )
        self._server = _Server(config, self._on_signal)
        self._server.run(sockets=[sock])
        if self._stopping is not None and not self._exit_status:
            self._tell("stopped")
        return self._exit_status

    def engine_failed(self, error: OctavoError) -> None:
        """The engine is gone, or cannot load: tell, let error answers leave, end. Idempotent."""
        if self._exit_status:
            return
        self._exit_status = 1
        self._tell(f"error: {self._phrase(error)}", logging.ERROR)
        if self._server is not None:
            self._server.should_exit = True
            asyncio.get_running_loop().call_later(_FAREWELL_S, self._force)

    def _force(self) -> None:
        assert self._server is not None
        self._server.force_exit = True

    def _on_signal(self) -> None:
        assert self._server is not None and self._state is not None
        if self._stopping is not None:
            self._stop_at_once()
        self._state.draining = True
        running = self._state.llm.num_unfinished_requests
        if running:
            self._tell(f"stopping when {running} running requests are done; Ctrl-C again stops at "
                       "once")
        self._stopping = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Requests first, then the engine: what is cut off gets an error, not silence."""
        assert self._server is not None and self._state is not None
        self._server.should_exit = True
        await self._state.llm.shutdown(drain=True, timeout=self._section.shutdown_timeout_s)

    def _stop_at_once(self) -> NoReturn:
        """The engine process ends by itself when its socket closes."""
        self._tell("stopped at once")
        os._exit(_STOPPED_AT_ONCE)

    def _tell(self, line: str, level: int = logging.INFO) -> None:
        """For whoever started the server, whatever the log level."""
        if self._section.log_format == "json":
            line = line.removeprefix("error: ")
            logger.handle(logger.makeRecord(logger.name, level, __file__, 0, line, (), None))
            return
        with contextlib.suppress(OSError):  # nobody reads it
            print(f"octavo: {line}", file=sys.stderr, flush=True)


class _Server(uvicorn.Server):
    """uvicorn's server with our signals, and without its habit of raising them again."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
