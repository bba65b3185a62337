"""The worker's side of the protocol: a JSON object a line in, one a line out.

    {"cmd": "load", "model": FILE, "threads": N, "max_sequences": N, "max_context": N}
        -> {"ok": true, "load_s": S, "facts": {...}}
    {"cmd": "run", "kind": "pp" | "tg", "sequences": N, "context": N, "tokens": N, "windows": N,
     "seed": N}
        -> {"ok": true, "tokens": N, "seconds": S, "cpu_s": S}
    anything that fails -> {"ok": false, "error": "one line"}

"pp" times a prompt of `tokens` tokens until its first output token is drawn. "tg" times `tokens`
greedy steps of `sequences` sequences of `context` tokens, from when each has its first. The prompts
of a "tg" are computed anew for every `windows` runs: the runs between go on where the last one
ended. Standard library only: every peer's environment runs this.
"""

import ctypes
import json
import os
import random
import signal
import sys
import time
from typing import Any, Protocol

# tokens, wall seconds, CPU seconds of this process (all threads, waiting by spinning included)
Measured = tuple[int, float, float]


class Stopwatch:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def stop(self, tokens: int) -> Measured:
        wall = time.perf_counter() - self._wall
        return tokens, wall, time.process_time() - self._cpu


class Engine(Protocol):
    """What a worker script implements."""

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]: ...

    def prefill(self, prompt: list[int]) -> Measured: ...

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        """Until every sequence has its first token; each may generate `tokens` more."""

    def window(self, tokens: int) -> Measured:
        """`tokens` more of each sequence."""

    def end(self) -> None:
        """Drops the sequences."""

    def vocab_size(self) -> int: ...


def serve(engine: Engine) -> None:
    """Answers commands until stdin ends. Whatever a library prints goes to stderr."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    session = _Session(engine)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = {"ok": True, **session.answer(json.loads(line))}
        except Exception as error:  # the peer's failure is a result, not the end of the run
            text = f"{type(error).__name__}: {error}"
            answer = {"ok": False, "error": " ".join(text.split())[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _die_with_parent() -> None:
    """A stopped process would not notice that nobody will ever continue it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class _Session:
    """Answers commands; knows which sequences are running."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: tuple[int, int] | None = None  # sequences, context
        self._windows_left = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["cmd"] == "load":
            return self._load(request)
        if request["cmd"] != "run":
            extra = getattr(self._engine, request["cmd"], None)
            if extra is None:
                raise ValueError(f"unknown command {request['cmd']}")
            return extra()
        run = self._prefill if request["kind"] == "pp" else self._decode
        return dict(zip(("tokens", "seconds", "cpu_s"), run(request), strict=True))

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        facts = self._engine.load(request["model"], request["threads"], request["max_sequences"],
                                  request["max_context"])
        return {"load_s": time.perf_counter() - started, "facts": facts}

    def _prefill(self, request: dict[str, Any]) -> Measured:
        self._end()
        return self._engine.prefill(self._prompts(request, 1, request["tokens"])[0])

    def _decode(self, request: dict[str, Any]) -> Measured:
        shape = request["sequences"], request["context"]
        windows = request.get("windows", 1)
        if self._windows_left == 0 or self._running != shape:
            self._end()
            self._running = shape
            self._engine.start(self._prompts(request, *shape), windows * request["tokens"])
            self._windows_left = windows
        measured = self._engine.window(request["tokens"])
        self._windows_left -= 1
        if self._windows_left == 0:
            self._end()
        return measured

    def _end(self) -> None:
        if self._running is not None:
            self._running, self._windows_left = None, 0
            self._engine.end()

    def _prompts(self, request: dict[str, Any], count: int, length: int) -> list[list[int]]:
        rng = random.Random(request["seed"])
        size = self._engine.vocab_size()
        # ids below 300 are control tokens in many vocabularies
        first = min(300, size - 1)
        return [[rng.randrange(first, size) for _ in range(length)] for _ in range(count)]
