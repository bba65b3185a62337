"""GrammarChecker: refuses bad grammars before their requests are accepted, off the event loop.

Compiling a grammar made to hurt can take for ever, and a thread cannot be stopped. So the checks
run in helper processes (`python -m octavo.grammar.checker`) that the system ends when one check
takes too much CPU time or memory. Knows no tokenizer and no request.
"""

import collections
import queue
import resource
import signal
import struct
import subprocess
import sys
import threading
from typing import IO

import msgspec

from octavo.core.structured_outputs import StructuredOutputs
from octavo.env import child_environment
from octavo.errors import OctavoError

# CPU seconds and bytes one check may take. The largest schemas the size limit lets through take
# about a second.
MAX_CHECK_CPU_S = 3.0
MAX_CHECK_BYTES = 1 << 30
# a helper that got no CPU at all for this long is ended, too
_MAX_CHECK_WALL_S = 60
NUM_HELPERS = 2  # one slow check does not hold up the next request
_CACHE_SIZE = 256
_HEADER = struct.Struct("<I")
_STARTED = b"started"


class GrammarChecker:
    """Thread-safe. Remembers the last verdicts. Helpers start with the first check, in 0.1 s."""

    def __init__(self, *, max_cpu_s: float = MAX_CHECK_CPU_S) -> None:
        self._max_cpu_s = max_cpu_s
        self._verdicts: collections.OrderedDict[tuple[str, str, str], str] = (
            collections.OrderedDict())
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[_Helper | None] = queue.LifoQueue()
        self._closed = False
        for _ in range(NUM_HELPERS):
            self._idle.put(None)

    def check(self, spec: StructuredOutputs) -> None:
        """Raises InvalidRequestError for a grammar that cannot be used, OctavoError where no helper
        starts. Blocks: call it in a thread."""
        key = spec.key
        with self._lock:
            verdict = self._verdicts.get(key)
            if verdict is not None:
                self._verdicts.move_to_end(key)
        if verdict is None:
            verdict = self._ask(spec)
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > _CACHE_SIZE:
                    self._verdicts.popitem(last=False)
        if verdict:
            raise spec.error(verdict)

    def _ask(self, spec: StructuredOutputs) -> str:
        helper = self._idle.get()
        try:
            if helper is None or not helper.is_alive:
                helper = _Helper(self._max_cpu_s)
            answer = helper.ask(msgspec.msgpack.encode(spec))
            if answer is None:
                helper.close()
                return (f"it takes more than {self._max_cpu_s:g} s or "
                        f"{MAX_CHECK_BYTES >> 30} GiB to compile: make it simpler")
            return answer.decode()
        finally:
            if self._closed and helper is not None:
                helper.close()
            self._idle.put(helper)

    def close(self) -> None:
        """Ends the helpers. Idempotent."""
        self._closed = True
        for _ in range(NUM_HELPERS):
            try:
                helper = self._idle.get_nowait()
            except queue.Empty:  # in use: closed by whoever uses it
                return
            if helper is not None:
                helper.close()
            self._idle.put(None)


class _Helper:
    """One helper process, at this end of its pipes. Raises OctavoError if it does not start: that
    is no fault of a grammar."""

    def __init__(self, max_cpu_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.grammar.checker", str(max_cpu_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=child_environment())
        assert self._process.stdout is not None
        if _receive(self._process.stdout) != _STARTED:
            self.close()
            raise OctavoError("the process that checks grammars does not start")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, payload: bytes) -> bytes | None:
        """The verdict, empty if the grammar is fine; None if the helper died of the question."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            _send(self._process.stdin, payload)
            return _receive(self._process.stdout)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


def _send(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(_HEADER.pack(len(payload)) + payload)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    header = pipe.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    (size,) = _HEADER.unpack(header)
    payload = pipe.read(size)
    return payload if len(payload) == size else None


def main() -> int:
    """A helper: specs on stdin, verdicts on stdout, until stdin ends.

    Timers with the default action end the process in the middle of native code, too.
    """
    from octavo.grammar.llguidance_backend import refusal

    max_cpu_s = float(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end decides when to stop
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_CHECK_BYTES, MAX_CHECK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    decode = msgspec.msgpack.Decoder(StructuredOutputs).decode
    _send(sys.stdout.buffer, _STARTED)
    while (payload := _receive(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        signal.alarm(_MAX_CHECK_WALL_S)
        verdict = refusal(decode(payload)) or ""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        _send(sys.stdout.buffer, verdict.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
