"""How a front end reaches an engine core: InprocClient (caller's thread), or a host over a socket.

A host is a process or a thread running core_process.serve_core; AsyncCoreClient talks to it from
asyncio. Knows the wire, not what requests mean.
"""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.config import EngineConfig, ServerSection
from octavo.core.messages import (
    AbortRequests,
    AddRequests,
    CoreEvents,
    CoreOutputs,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFailed,
    EngineReady,
    ResetPrefixCache,
    SchedulerStats,
    Shutdown,
    ToCore,
    Watch,
)
from octavo.engine.core import EngineCore
from octavo.engine.core_process import BuildCore, serve_core
from octavo.engine.frames import HEADER, encode_frame, from_core_decoder, payload_size
from octavo.env import child_environment
from octavo.errors import EngineDeadError, OctavoError, error_of

logger = logging.getLogger(__name__)

_EXIT_TIMEOUT_S = 5.0  # an engine told to stop ends its step (well under a second) and frees memory
_DRAIN_TIMEOUT_S = 1.0  # an engine that reads takes what was sent in milliseconds


class InprocClient:
    """Steps the core in the caller's thread."""

    def __init__(self, core: EngineCore, ready: EngineReady) -> None:
        self._core = core
        self.ready = ready

    def add(self, requests: Sequence[EngineCoreRequest]) -> None:
        self._core.add(requests)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._core.abort(request_ids)

    @property
    def has_requests(self) -> bool:
        return self._core.has_requests

    @property
    def is_prepared(self) -> bool:
        return self._core.is_prepared

    def step(self, meanwhile: Callable[[], None] | None = None) -> EngineCoreOutputs:
        """One step; see EngineCore.step. Raises EngineDeadError when it fails."""
        return self._core.step(meanwhile)

    def reset_prefix_cache(self) -> None:
        self._core.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        return self._core.stats()

    def describe(self) -> dict[str, str]:
        return dict(self._core.describe())

    def shutdown(self) -> None:
        self._core.shutdown()


class CoreHost(Protocol):
    """Something that runs a core at the other end of `sock`. The config has been sent.

    pid: of its process; None if that is ours."""

    sock: socket.socket

    @property
    def pid(self) -> int | None: ...

    def end(self, timeout: float) -> str:
        """Waits for it to end, then makes it; returns how it ended, for people."""


class ProcessHost:
    """The core in a process of its own. Started by the constructor; loading goes on meanwhile."""

    def __init__(self, config: EngineConfig) -> None:
        self.sock, theirs = socket.socketpair()
        # the signals stay blocked until the child ignores them, so an early Ctrl-C cannot kill it
        blocked = {signal.SIGINT, signal.SIGTERM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "octavo.engine.core_process",
                     str(theirs.fileno()), config.server.log_level, config.server.log_format],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                    env=child_environment(),
                )
        except BaseException:
            self.sock.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _send_config(self.sock, config)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, timeout: float) -> str:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
            return f"killed by signal {-code}"
        return f"exit status {code}"


class ThreadHost:
    """The core in a daemon thread of this process, over the same protocol."""

    pid = None

    def __init__(self, config: EngineConfig, build: BuildCore) -> None:
        self.sock, theirs = socket.socketpair()
        self._thread = threading.Thread(target=serve_core, args=(theirs, build),
                                        name="octavo-engine", daemon=True)
        self._thread.start()
        _send_config(self.sock, config)

    def end(self, timeout: float) -> str:
        self._thread.join(timeout)
        return "still in a step" if self._thread.is_alive() else "ended"


def _send_config(sock: socket.socket, config: EngineConfig) -> None:
    # the engine has no business with API keys
    with contextlib.suppress(ConnectionError):  # it died at once: the reader will see it
        sock.sendall(encode_frame(dataclasses.replace(config, server=ServerSection())))


class AsyncCoreClient:
    """Talks to a CoreHost from one event loop: one reader task, writes that never wait.

    on_outputs: called with each step's news. on_events: with what watch() asked for. on_death:
    called once when the core goes unasked.
    """

    def __init__(self, host: CoreHost, *, on_outputs: Callable[[EngineCoreOutputs], None],
                 on_events: Callable[[CoreEvents], None],
                 on_death: Callable[[OctavoError], None]) -> None:
        self._host = host
        self._on_outputs = on_outputs
        self._on_events = on_events
        self._on_death = on_death
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._closing = False
        self._why: str | None = None
        self.ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Begins reading. `ready` resolves when the core has loaded, or holds its typed error."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._host.sock)
        self._reader_task = asyncio.create_task(self._read(reader), name="octavo-core-reader")

    @property
    def is_ready(self) -> bool:
        """Loaded and alive."""
        return (not self._closing and self.ready.done() and not self.ready.cancelled()
                and self.ready.exception() is None)

    def kill(self, why: str) -> None:
        """Ends an engine that hangs; on_death hears `why`."""
        self._why = why
        asyncio.get_running_loop().run_in_executor(None, self._host.end, 0.0)

    def add(self, requests: list[EngineCoreRequest]) -> None:
        self._send(AddRequests(requests))

    def abort(self, request_ids: list[str]) -> None:
        self._send(AbortRequests(request_ids))

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    def watch(self, interval_s: float) -> None:
        """Asks for CoreEvents, one each interval at most; 0: no more of them."""
        self._send(Watch(interval_s))

    def _send(self, message: ToCore) -> None:
        # what waits in the writer's buffer is bounded by the bound on requests
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_frame(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        failure: OctavoError | None = None
        try:
            while failure is None:
                header = await reader.readexactly(HEADER.size)
                payload = await reader.readexactly(payload_size(header))
                message = from_core_decoder.decode(payload)
                match message:
                    case CoreOutputs(outputs=outputs):
                        self._on_outputs(outputs)
                    case CoreEvents():
                        self._on_events(message)
                    case EngineReady():
                        if not self.ready.done():  # done: shut down while loading
                            self.ready.set_result(message)
                    case EngineFailed(error_type=error_type, message=text):
                        failure = error_of(error_type, text)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except OctavoError as error:
            failure = error
        except Exception as error:
            # a message that cannot be read, or a bug in what it means: nobody may wait for ever
            logger.exception("the news of the engine could not be handled")
            failure = EngineDeadError(f"the news of the engine could not be handled "
                                      f"({type(error).__name__}): it was stopped")
        if not self._closing:
            await self._died(failure)

    async def _died(self, failure: OctavoError | None) -> None:
        if self._writer is not None:
            self._writer.close()
        said_why = failure is not None
        if failure is None:
            how = await asyncio.to_thread(self._host.end, _EXIT_TIMEOUT_S)
            failure = EngineDeadError(
                self._why or f"the engine process died ({how}); its requests have failed")
        self._closing = True
        if not self.ready.done():
            self.ready.set_exception(failure)
            self.ready.exception()  # seen: a loop without a waiter must not complain
        self._on_death(failure)
        if said_why:  # no zombie, and no engine that lives on
            await asyncio.to_thread(self._host.end, _EXIT_TIMEOUT_S)

    async def shutdown(self) -> None:
        """Tells the core to stop, waits for its end, kills it if it does not come. Idempotent."""
        if not self._closing:
            self._send(Shutdown())
        self._closing = True
        if not self.ready.done():
            self.ready.set_exception(EngineDeadError("the engine was shut down while loading"))
            self.ready.exception()
        if self._writer is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                # an engine that hangs does not read
                await asyncio.wait_for(self._writer.drain(), _DRAIN_TIMEOUT_S)
        await asyncio.to_thread(self._host.end, _EXIT_TIMEOUT_S)
        if self._writer is not None:
            self._writer.close()
        if self._reader_task is not None:
            await self._reader_task
