"""`octavo serve` as a child process, for benchmarks. A context manager."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from types import TracebackType

from benchmarks.common import ROOT

_START_TIMEOUT_S = 120.0
_POLL_S = 0.005
_STOP_TIMEOUT_S = 20.0


class ServerProcess:
    """Started at once. Attributes: base_url, pid, started (perf_counter at the start)."""

    def __init__(self, model: str, *flags: str) -> None:
        port = _free_port()
        self.base_url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port), *flags],
            stdout=self._log, stderr=subprocess.STDOUT, cwd=ROOT)
        self.pid = self._process.pid

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def signal(self, number: signal.Signals) -> None:
        """Sends it to the server alone, not to its engine."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Until it has ended by itself; the exit status."""
        return self._process.wait(_STOP_TIMEOUT_S)

    def wait_ready(self) -> None:
        """Until /ready answers. Raises RuntimeError with the server's last words."""
        deadline = self.started + _START_TIMEOUT_S
        while time.perf_counter() < deadline and self._process.poll() is None:
            with (contextlib.suppress(OSError),
                  urllib.request.urlopen(f"{self.base_url}/ready", timeout=5) as answer):
                if answer.status == 200:
                    return
            time.sleep(_POLL_S)
        self._log.seek(0)
        raise RuntimeError("the server did not get ready: "
                           + self._log.read()[-500:].decode("utf-8", "replace"))

    def complete(self, prompt: str, tokens: int) -> None:
        """One completion of so many tokens."""
        with urllib.request.urlopen(f"{self.base_url}/v1/models", timeout=10) as answer:
            name = json.load(answer)["data"][0]["id"]
        body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.base_url}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_START_TIMEOUT_S) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == tokens


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
