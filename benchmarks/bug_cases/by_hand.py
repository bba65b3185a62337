"""Cases that the runner leaves to a person, as code. Each returns "" where it holds, else why not.

They start their own servers, or take the plain one's client.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from benchmarks.common import ROOT
from benchmarks.server_process import ServerProcess

_WAIT_S = 60.0
_FLAGS = ("--kv-cache-memory-bytes", "256m")
_SERVED = "SmolLM2-135M-Instruct"


def post(base_url: str, path: str, body: dict[str, Any]) -> Any:
    """An open answer."""
    return urllib.request.urlopen(urllib.request.Request(
        base_url + path, json.dumps(body).encode(), {"content-type": "application/json"}),
        timeout=_WAIT_S)


def _completion(**fields: Any) -> dict[str, Any]:
    return {"model": _SERVED, "prompt": "Hello", "max_tokens": 4, "temperature": 0} | fields


def golden_window(model: str) -> str:
    """B186: the logits of a model with a sliding window against another implementation's."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "tests/models/test_goldens.py", "-k", "mistral"],
        cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", done.stdout)
    return "" if done.returncode == 0 and passed else done.stdout[-300:]


def stop_signal(model: str) -> str:
    """B196: SIGTERM during a stream: it ends with [DONE], nobody new, exit status 0."""
    with ServerProcess(model, *_FLAGS) as server:
        server.wait_ready()
        answer = post(server.base_url, "/v1/completions", _completion(
            max_tokens=200, ignore_eos=True, stream=True))
        lines = [answer.readline() for _ in range(4)]
        server.signal(signal.SIGTERM)
        refused = _refused(server.base_url)
        text = b"".join([*lines, answer.read()]).decode()
        status = server.wait()
    events = [json.loads(line[6:]) for line in text.splitlines()
              if line.startswith("data: {")]
    finish = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    if not text.endswith("data: [DONE]\n\n") or finish != ["length"]:
        return f"the stream ended with {text[-80:]!r}, finish reasons {finish}"
    if not refused:
        return "a new request was served during the drain"
    return "" if status == 0 else f"exit status {status}"


def _refused(base_url: str) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # the signal takes a moment to be seen
        try:
            post(base_url, "/v1/completions", _completion()).read()
        except urllib.error.HTTPError as error:
            return error.code == 503
        except OSError:
            return True
    return False


def ready_means_ready(model: str) -> str:
    """B197: the first 200 of /health is followed by a completion that succeeds."""
    with ServerProcess(model, *_FLAGS) as server:
        deadline = time.monotonic() + _WAIT_S
        seen: list[str] = []
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(server.base_url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        break
            except urllib.error.HTTPError as error:
                seen.append(str(error.code))
            except OSError:
                pass
            time.sleep(0.05)
        with post(server.base_url, "/v1/completions", _completion()) as answer:
            json.load(answer)
    odd = set(seen) - {"503"}
    return f"/health answered {odd} while loading" if odd else ""


def port_taken(model: str) -> str:
    """B198: the second server says so before it loads anything."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port)],
            cwd=ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    text = done.stdout + done.stderr
    if done.returncode == 0 or str(port) not in text or "Traceback" in text:
        return f"exit status {done.returncode}: {text[-200:]}"
    return "" if "Ready" not in text else f"loaded first, {time.monotonic() - started:.1f} s"


def _metric(base_url: str, name: str) -> float:
    with urllib.request.urlopen(base_url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(rf"(?m)^\S*{name}(?:\{{[^}}]*\}})? (\S+)$", text)
    return sum(float(value) for value in found)


def _settled(base_url: str, name: str, wanted: float) -> float:
    """The metric when it is `wanted`, else its last value."""
    deadline = time.monotonic() + 10
    while (value := _metric(base_url, name)) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return value


def one_request_counts_once(base_url: str) -> str:
    """B219: n=1 and n=3 raise the counter of finished requests by 2."""
    before = _metric(base_url, "request_success_total")
    for n in (1, 3):
        post(base_url, "/v1/completions", _completion(n=n)).read()
    after = _settled(base_url, "request_success_total", before + 2)
    return "" if after == before + 2 else f"rose by {after - before:g}"


def aborted_are_counted(base_url: str) -> str:
    """B220: five aborted streams are in the token totals and in the histograms alike."""
    def abort() -> None:
        answer = post(base_url, "/v1/completions", _completion(
            prompt="Once upon a time there was", max_tokens=1000, ignore_eos=True, stream=True))
        answer.readline()
        answer.close()

    before = _metric(base_url, "request_prompt_tokens_count")
    threads = [threading.Thread(target=abort) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _settled(base_url, "num_requests_running", 0)
    seen = _settled(base_url, "request_prompt_tokens_count", before + 5)
    if seen != before + 5:
        return f"the histogram saw {seen - before:g} of 5 requests"
    for kind in ("prompt", "generation"):
        total = _metric(base_url, f"{kind}_tokens_total")
        histogram = _metric(base_url, f"request_{kind}_tokens_sum")
        if total != histogram:
            return f"{kind} tokens: total {total:g}, histogram {histogram:g}"
    return ""


WITH_OWN_SERVERS: dict[str, Callable[[str], str]] = {
    "B186": golden_window, "B196": stop_signal, "B197": ready_means_ready, "B198": port_taken,
}
ON_THE_PLAIN_SERVER: dict[str, Callable[[str], str]] = {
    "B219": one_request_counts_once, "B220": aborted_are_counted,
}
