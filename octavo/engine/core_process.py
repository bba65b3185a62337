"""The engine core behind a socket: `python -m octavo.engine.core_process FD LEVEL FORMAT`, or a
thread.

One frame a step goes out, requests and aborts come in. Idle, it sleeps in recv: no CPU. It ends
when told to, when a step fails, and when the other end of the socket is gone.
"""

import contextlib
import functools
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable

import msgspec

from octavo.config import EngineConfig
from octavo.core.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutputs,
    EngineFailed,
    EngineReady,
    FromCore,
    ResetPrefixCache,
    Shutdown,
    ToCore,
    Watch,
)
from octavo.engine.core import EngineCore
from octavo.engine.frames import FrameReader, encode_frame, encode_outputs, to_core_decoder
from octavo.engine.step_loop import StepLoop
from octavo.errors import EngineDeadError, OctavoError
from octavo.log_format import set_up_logging

logger = logging.getLogger(__name__)

BuildCore = Callable[[EngineConfig], tuple[EngineCore, EngineReady]]

_RECV_BYTES = 1 << 18
# room for the news of some hundred steps, so that a busy front end does not hold up the engine
_SEND_BUFFER_BYTES = 1 << 22

# how long a failed core waits for its failure to be read
_LAST_WORD_TIMEOUT_S = 5.0


def serve_core(sock: socket.socket, build: BuildCore) -> int:
    """Reads the config, builds the core, runs it until the end; returns an exit status."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        with sock:
            return _serve(_Link(sock), build)
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the front end is gone: nobody to tell


def _serve(link: "_Link", build: BuildCore) -> int:
    payload = link.first()
    if payload is None:
        return 1
    config = msgspec.msgpack.decode(payload, type=EngineConfig)
    try:
        core, ready = build(config)
    except Exception as error:
        link.end(_failure(error))
        return 1
    try:
        link.send(ready)
        _run(core, link)
    except EngineDeadError as error:
        link.end(_failure(error))
        return 1
    finally:
        core.shutdown()
    return 0


def _failure(error: Exception) -> EngineFailed:
    if isinstance(error, OctavoError):
        return EngineFailed(type(error).__name__, error.message)
    logger.error("the engine could not be loaded", exc_info=error)
    text = " ".join(str(error).split())
    return EngineFailed("OctavoError", f"the engine could not be loaded: "
                        f"{type(error).__name__}: {text}")


def _run(core: EngineCore, link: "_Link") -> None:
    draining = False
    loop = StepLoop(core, link.send_outputs)
    while True:
        if draining and not core.has_requests:
            return
        # asleep in recv while there is nothing to do
        busy = core.has_requests
        messages = link.receive(block=not busy, wait_s=None if busy else core.live.due_in_s())
        if messages is None:
            return
        for message in messages:
            match message:
                case AddRequests(requests=requests):
                    core.add(requests)
                case AbortRequests(request_ids=request_ids):
                    core.abort(request_ids)
                case ResetPrefixCache():
                    core.reset_prefix_cache()
                case Watch(interval_s=interval_s):
                    core.watch(interval_s)
                case Shutdown(drain=drain):
                    if not drain:
                        return
                    draining = True
        loop.settle()
        if core.has_requests:
            loop.step()
        elif messages:
            link.send_outputs(EngineCoreOutputs(outputs=[], stats=core.stats()))
        events = core.live.take()
        if events is not None:
            link.send(events)


class _Link:
    """The core's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._waiting: list[bytes] = []

    def first(self) -> bytes | None:
        """The first payload (the config); None if the other end closed."""
        while not self._waiting:
            data = self._sock.recv(_RECV_BYTES)
            if not data:
                return None
            self._waiting = self._reader.feed(data)
        return self._waiting.pop(0)

    def receive(self, *, block: bool, wait_s: float | None = None) -> list[ToCore] | None:
        """Messages that have come, waiting for one if `block`, for wait_s seconds at most where
        that is given; None if the other end closed."""
        payloads, self._waiting = self._waiting, []
        if block and wait_s is not None and not payloads:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            poll.poll(1000 * wait_s)
            block = False  # a message may also have come in part
        block = block and not payloads
        while True:
            try:
                data = self._sock.recv(_RECV_BYTES, 0 if block else socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if not data:
                return None
            payloads += self._reader.feed(data)
            block = block and not payloads
        return [to_core_decoder.decode(p) for p in payloads]

    def send(self, message: FromCore) -> None:
        self._sock.sendall(encode_frame(message))

    def send_outputs(self, outputs: EngineCoreOutputs) -> None:
        for frame in encode_outputs(outputs):
            self._sock.sendall(frame)

    def end(self, failure: EngineFailed) -> None:
        """The last word, then waits for the other end to close.

        Closing with messages unread would reset the connection, and the failure could be lost.
        """
        self.send(failure)
        self._sock.shutdown(socket.SHUT_WR)
        self._sock.settimeout(_LAST_WORD_TIMEOUT_S)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while self._sock.recv(_RECV_BYTES):
                pass


def _exit_with_parent(fd: int) -> None:
    """Waits for the other end to go and ends the process, whatever it is doing: no orphans."""
    poll = select.poll()
    poll.register(fd, 0)  # nothing but hang-up
    poll.poll()
    os._exit(1)


def main() -> int:
    """Entry of the engine process; argv: the inherited socket, level and format of the log."""
    # Ctrl-C goes to the whole foreground group, and service managers signal every process of a
    # service. The front end decides: it drains, then says Shutdown, or its end of the socket goes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    set_up_logging(sys.argv[2], sys.argv[3], process="engine")
    sock = socket.socket(fileno=int(sys.argv[1]))
    watch_fd = os.dup(sock.fileno())
    threading.Thread(target=_exit_with_parent, args=(watch_fd,), name="octavo-parent-watch",
                     daemon=True).start()
    from octavo.engine.factory import build_core

    return serve_core(sock, functools.partial(build_core, warm_grammar=True))


if __name__ == "__main__":
    sys.exit(main())
