"""The worker's side of the protocol: a JSON object a line in, one a line out.

    {"cmd": "load", "model": FILE, "threads": N, "max_sequences": N, "max_context": N}
        -> {"ok": true, "load_s": S, "facts": {...}}
    {"cmd": "run", "kind": "pp" | "tg", "sequences": N, "context": N, "tokens": N, "seed": N}
        -> {"ok": true, "tokens": N, "seconds": S, "cpu_s": S}
    anything that fails -> {"ok": false, "error": "one line"}

"pp" times a prompt of `tokens` tokens until its first output token is drawn. "tg" times `tokens`
greedy steps of `sequences` sequences of `context` tokens, from when each has its first. Standard
library only: every peer's environment runs this.
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

    def decode(self, prompts: list[list[int]], tokens: int) -> Measured: ...

    def vocab_size(self) -> int: ...


def serve(engine: Engine) -> None:
    """Answers commands until stdin ends. Whatever a library prints goes to stderr."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = {"ok": True, **_answer(engine, json.loads(line))}
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


def _answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    if request["cmd"] == "load":
        started = time.perf_counter()
        facts = engine.load(request["model"], request["threads"], request["max_sequences"],
                            request["max_context"])
        return {"load_s": time.perf_counter() - started, "facts": facts}
    if request["cmd"] != "run":
        extra = getattr(engine, request["cmd"], None)
        if extra is None:
            raise ValueError(f"unknown command {request['cmd']}")
        return extra()
    rng = random.Random(request["seed"])
    length = request["tokens"] if request["kind"] == "pp" else request["context"]
    # ids below 300 are control tokens in many vocabularies
    first = min(300, engine.vocab_size() - 1)
    prompts = [[rng.randrange(first, engine.vocab_size()) for _ in range(length)]
               for _ in range(request["sequences"])]
    if request["kind"] == "pp":
        measured = engine.prefill(prompts[0])
    else:
        measured = engine.decode(prompts, request["tokens"])
    return dict(zip(("tokens", "seconds", "cpu_s"), measured, strict=True))
