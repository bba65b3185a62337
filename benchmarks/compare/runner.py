"""Runs the entrants in turn: for each repetition of each case every one once, the others stopped.

One process an entrant and model, speaking JSON over its pipes (workers/stdio.py).
"""

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import IO, Any

from benchmarks.compare.cases import Case, Group
from benchmarks.compare.peers import Entrant

# the slowest case of the slowest peer takes a minute or two on a busy machine
TIMEOUT_S = 900.0


class WorkerError(Exception):
    """A worker said no, ended, or took too long. One line."""


class Worker:
    """A running worker. A context manager; stopped (SIGSTOP) whenever it is not asked anything,
    so that no engine's waiting threads take time from another."""

    def __init__(self, entrant: Entrant) -> None:
        self.entrant = entrant
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            [entrant.python, entrant.worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._stderr, env=_environment(), text=True)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        process = self._process
        if process.poll() is None:
            process.kill()
        process.communicate()
        self._stderr.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a command and returns its answer. Raises WorkerError."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        if process.poll() is not None:
            raise WorkerError(f"the worker has ended with status {process.returncode}: "
                              f"{self._last_words()}")
        process.send_signal(signal.SIGCONT)
        alarm = threading.Timer(TIMEOUT_S, process.kill)
        alarm.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
        if not line:
            process.wait()
            raise WorkerError(f"the worker ended with status {process.returncode} during "
                              f"{request['cmd']}: {self._last_words()}")
        process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise WorkerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


@dataclasses.dataclass(slots=True)
class Series:
    """The samples of one entrant with one model on one case, tokens a second; or its error."""

    entrant: str
    model: str
    case: Case
    samples: list[float] = dataclasses.field(default_factory=list)
    cpu_samples: list[float] = dataclasses.field(default_factory=list)
    error: str | None = None


@dataclasses.dataclass(slots=True)
class Outcome:
    """Everything one run found.

    loads: seconds until ready, by entrant, model and group. probes: what the machine could do
    then. load_before: the machine's load average before the run; load_averages: during it.
    missing: one line for each peer that could not take part.
    """

    series: list[Series] = dataclasses.field(default_factory=list)
    loads: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    probes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    load_averages: list[float] = dataclasses.field(default_factory=list)
    load_before: float | None = None
    missing: list[str] = dataclasses.field(default_factory=list)


def run_group(group: Group, entrants: list[Entrant], models: list[str], *, threads: int,
              repetitions: int, outcome: Outcome,
              progress: Callable[[str], None] = lambda what: None) -> None:
    """Measures a group of cases; appends to outcome."""
    rounds = [models] if group.together else [[model] for model in models]
    for files in rounds:
        _run_round(group, entrants, files, threads=threads, repetitions=repetitions,
                   outcome=outcome, progress=progress)
        entrants = [entrant for entrant in entrants if entrant.model is None]  # servers: once


def _run_round(group: Group, entrants: list[Entrant], models: list[str], *, threads: int,
               repetitions: int, outcome: Outcome, progress: Callable[[str], None]) -> None:
    """Every entrant with every file of `models` that it reads, loaded at once."""
    workers: list[tuple[Worker, str]] = []
    try:
        for entrant in entrants:
            for model in entrant.models_of(models):
                progress(f"{group.name}: loading {entrant.name}")
                worker = Worker(entrant)
                workers.append((worker, model))
                _load(worker, model, group, threads, outcome)
        failed = {(load["entrant"], load["model"]) for load in outcome.loads
                  if load["group"] == group.name and "error" in load}
        ready = [(w, m) for w, m in workers if (w.entrant.name, m) not in failed]
        _measure(group, ready, repetitions, outcome, progress)
    finally:
        for worker, _ in workers:
            worker.__exit__()


def _load(worker: Worker, model: str, group: Group, threads: int, outcome: Outcome) -> None:
    found: dict[str, Any] = {"entrant": worker.entrant.name, "model": model, "group": group.name}
    try:
        found |= worker.ask({
            "cmd": "load", "model": model, "threads": threads,
            "max_sequences": group.max_sequences, "max_context": group.max_context})
        if worker.entrant.name == "octavo":
            outcome.probes.append({"model": model, "group": group.name,
                                   **worker.ask({"cmd": "probe"})})
    except WorkerError as error:
        found["error"] = str(error)
    outcome.loads.append(found)


def _measure(group: Group, workers: list[tuple[Worker, str]], repetitions: int, outcome: Outcome,
             progress: Callable[[str], None]) -> None:
    for case in group.cases:
        series = [Series(worker.entrant.name, model, case) for worker, model in workers]
        outcome.series += series
        # repetition 0 warms caches and thread pools and is not counted
        for repetition in range(repetitions + 1):
            outcome.load_averages.append(os.getloadavg()[0])
            for found, (worker, _) in zip(series, workers, strict=True):
                if found.error is not None:
                    continue
                progress(f"{case.name}: {found.entrant}, {repetition} of {repetitions}")
                _sample(worker, case, repetition, found)


def _sample(worker: Worker, case: Case, repetition: int, found: Series) -> None:
    try:
        answer = worker.ask({"cmd": "run", "seed": repetition, **dataclasses.asdict(case)})
    except WorkerError as error:
        found.error = str(error)
        return
    if repetition > 0:
        found.samples.append(answer["tokens"] / answer["seconds"])
        found.cpu_samples.append(answer["tokens"] / max(answer["cpu_s"], 1e-9))


def _environment() -> dict[str, str]:
    """The worker's: its libraries must not look for anything on the net or for other GPUs."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
