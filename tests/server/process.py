"""`octavo serve` as a process, and what a test does with one."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import IO

import psutil

from tests.server.http_client import HttpClient

WAIT_S = 60.0
_URL = re.compile(r" on http://127\.0\.0\.1:(\d+) ")


class ServerProcess:
    """Starts in the constructor, on a free port; killed at the end if it still runs."""

    def __init__(self, model: str, *arguments: str, port: int = 0,
                 stdout: str | None = None) -> None:
        # files, not pipes: a server must never wait for a test to read
        # where requests are recorded, by every server
        main = "tests.api_record" if "OCTAVO_TEST_API_RECORD" in os.environ else "octavo.cli.main"
        self._out: IO[str] = (  # a file, or a device that refuses
            tempfile.TemporaryFile("w+") if stdout is None else open(stdout, "w"))  # noqa: SIM115
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", main, "serve", model, "--port", str(port),
             *arguments],
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self.client = HttpClient("127.0.0.1", port)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._out.close()
        self._err.close()

    @property
    def stdout(self) -> str:
        return _content(self._out)

    @property
    def stderr(self) -> str:
        return _content(self._err)

    def wait_ready(self) -> None:
        """Until the banner with the port is out."""
        deadline = time.monotonic() + WAIT_S
        while (found := _URL.search(self.stdout)) is None:
            assert self.process.poll() is None, f"the server ended: {self.stderr}"
            assert time.monotonic() < deadline, f"the server is not ready: {self.stderr}"
            time.sleep(0.02)
        self.client = HttpClient("127.0.0.1", int(found[1]))

    def wait_listening(self) -> None:
        """Until it can serve, for a server whose banner nobody sees."""
        deadline = time.monotonic() + WAIT_S
        while True:
            assert self.process.poll() is None, f"the server ended: {self.stderr}"
            assert time.monotonic() < deadline, f"the server is not ready: {self.stderr}"
            time.sleep(0.02)
            listening = [c.laddr.port for c in psutil.Process(self.process.pid).net_connections()
                         if c.status == psutil.CONN_LISTEN]
            if listening:
                self.client = HttpClient("127.0.0.1", listening[0])
                if self.client.get("/ready").status == 200 and self.stderr:
                    return

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit status."""
        return self.process.wait(WAIT_S)

    @property
    def engine(self) -> psutil.Process:
        """The engine process."""
        children = psutil.Process(self.process.pid).children()
        (found,) = [c for c in children if "octavo.engine.core_process" in c.cmdline()]
        return found


def _content(file: IO[str]) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode("utf-8", "replace")
