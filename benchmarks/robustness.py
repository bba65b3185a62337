"""Does Octavo keep its speed on a machine that is not all its own?

    python -m benchmarks.robustness --model MODEL.gguf [--cases neighbour,quota,threads,idle]

Each case measures decode and prefill with and without a disturbance, alternately, and prints the
ratio of the medians beside the goal; --json keeps the figures. A case that cannot run here says
why. Engines run in processes of their own, driven over their standard input; knows no kernels.
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import facts, write_json
from benchmarks.server_process import ServerProcess
from octavo.bench.process_cpu import tree_cpu_s
from octavo.machine import machine_facts

MEASURES = ("decode", "prefill")
QUOTAS = (0.5, 1.0, 1.5)
_DECODE_TOKENS, _CONTEXT, _PREFILL_TOKENS = 64, 64, 512
_IDLE_S = 10.0
# A measurement goes on for at least so long: several of the scheduler's periods of 100 ms.
_MEASURE_S = 0.6
_PERIOD_US = 100_000


@dataclasses.dataclass(slots=True, frozen=True)
class Finding:
    """One row of the table. value and goal: a ratio of undisturbed throughput, or for idle the
    share of one CPU. None: it could not be measured, `note` says why."""

    case: str
    measure: str
    value: float | None
    goal: float
    at_least: bool = True
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met."""
        if self.value is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


class Engine:
    """An engine in a process of its own. A context manager."""

    def __init__(self, model: str, *, threads: int | None = None,
                 enter: Callable[[int], None] | None = None) -> None:
        command = [sys.executable, "-m", "benchmarks.robustness", "--worker", "--model", model]
        if threads is not None:
            command += ["--num-threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        if enter is not None:
            enter(self.process.pid)  # before it is told to load anything
        self.threads = int(self.ask("load"))

    def ask(self, what: str) -> float:
        """One measurement, in tokens a second; "load" answers the number of threads."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the engine process ended at {what!r}")
        return float(answer)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=30)


def worker(model: str, threads: int | None) -> int:
    """The engine process: a line in, a figure out."""
    sys.stdin.readline()
    from octavo.bench.engine_bench import Case, EngineBench
    from octavo.config_resolve import EngineArgs
    from octavo.engine.factory import resolve_args

    config = resolve_args(EngineArgs(
        model=model, num_threads=threads, max_num_seqs=1, num_blocks=128,
        max_model_len=_PREFILL_TOKENS + 2 * _DECODE_TOKENS)).config
    cases = {"decode": Case("tg", _DECODE_TOKENS, 1, _CONTEXT),
             "prefill": Case("pp", _PREFILL_TOKENS)}
    with EngineBench(config) as bench:
        for case in cases.values():
            bench.run(case)
        print(config.model.num_threads, flush=True)
        for line in sys.stdin:
            tokens, seconds = 0, 0.0
            while seconds < _MEASURE_S:
                run = bench.run(cases[line.strip()])
                tokens, seconds = tokens + run.tokens, seconds + run.seconds
            print(tokens / seconds, flush=True)
    return 0


def _ratios(plain: Engine, disturbed: Engine, rounds: int,
            disturb: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
            ) -> dict[str, float]:
    """Median with the disturbance over median without, by measure; alternating."""
    rates: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for measure in MEASURES:
            rates.setdefault((measure, False), []).append(plain.ask(measure))
            with disturb():
                rates.setdefault((measure, True), []).append(disturbed.ask(measure))
    return {m: statistics.median(rates[m, True]) / statistics.median(rates[m, False])
            for m in MEASURES}


@contextlib.contextmanager
def _busy_neighbour(cpu: int) -> Iterator[None]:
    """A process that never rests, on one CPU."""
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def neighbour(model: str, rounds: int) -> list[Finding]:
    """A busy process pinned to one of the CPUs."""
    cpu = min(os.sched_getaffinity(0))
    with Engine(model) as engine:
        found = _ratios(engine, engine, rounds, lambda: _busy_neighbour(cpu))
    return [Finding("neighbour", m, found[m], 0.6, note=f"{engine.threads} threads")
            for m in MEASURES]


class CpuGroup:
    """A cgroup (v1 or v2) with a CPU quota, removed at the end. A context manager."""

    def __init__(self, cpus: float) -> None:
        v2 = Path("/sys/fs/cgroup/cgroup.controllers")
        root = v2.parent if v2.exists() else v2.parent / "cpu"
        self._path = root / f"octavo-robustness-{os.getpid()}"
        self._path.mkdir()
        quota = int(cpus * _PERIOD_US)
        try:
            if v2.exists():
                (self._path / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            else:
                (self._path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._path / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError:
            self._path.rmdir()
            raise

    def enter(self, pid: int) -> None:
        """Moves a process in."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def __enter__(self) -> "CpuGroup":
        return self

    def __exit__(self, *error: object) -> None:
        deadline = time.monotonic() + 5
        while True:
            try:
                self._path.rmdir()
                return
            except OSError:  # its last process is still ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def quota(model: str, rounds: int) -> list[Finding]:
    """A cgroup that allows q of the CPUs' time: 0.85 of that share is to be kept."""
    cpus = machine_facts(has_native=True).num_cores
    found = []
    for q in QUOTAS:
        goal = 0.85 * q / cpus
        if q >= cpus:
            continue
        try:
            with CpuGroup(q) as group, Engine(model) as plain:
                with Engine(model, enter=group.enter) as limited:
                    ratios = _ratios(plain, limited, rounds)
                note = f"{limited.threads} threads of {plain.threads}"
                found += [Finding(f"quota {q}", m, ratios[m], goal, note=note) for m in MEASURES]
        except OSError as error:
            found += [Finding(f"quota {q}", m, None, goal, note=f"no cgroup: {error.strerror}")
                      for m in MEASURES]
    return found


def threads(model: str, rounds: int) -> list[Finding]:
    """Four times as many threads as CPUs, against as many."""
    cpus = machine_facts(has_native=True).num_affinity_cpus
    with Engine(model, threads=cpus) as plain, Engine(model, threads=4 * cpus) as many:
        found = _ratios(plain, many, rounds)
    return [Finding(f"{4 * cpus} threads", m, found[m], 0.95, note=f"against {cpus}")
            for m in MEASURES]


def idle(model: str, rounds: int) -> list[Finding]:
    """CPU time of a loaded engine and of a loaded server with nothing to do."""
    found = []
    with Engine(model) as engine:
        engine.ask("decode")
        found.append(_idle_finding("engine", engine.process.pid))
    with ServerProcess(model, "--max-model-len", "1024") as server:
        server.wait_ready()
        server.complete("Hello", 4)
        found.append(_idle_finding("server", server.pid))
    return found


def _idle_finding(name: str, pid: int) -> Finding:
    time.sleep(1.0)  # what ends a request is not idling
    before, started = tree_cpu_s(pid), time.monotonic()
    time.sleep(_IDLE_S)
    used = tree_cpu_s(pid) - before
    return Finding("idle", name, used / (time.monotonic() - started), 0.005, at_least=False,
                   note=f"{used:.2f} CPU-seconds in {_IDLE_S:.0f} s")


CASES: dict[str, Callable[[str, int], list[Finding]]] = {
    "neighbour": neighbour, "quota": quota, "threads": threads, "idle": idle}


def table_text(findings: list[Finding]) -> str:
    """The findings as lines of text."""
    lines = [f"{'case':<12} {'measure':<9} {'value':>7} {'goal':>9}       note"]
    for f in findings:
        value = "-" if f.value is None else f"{f.value:.3f}"
        goal = f"{'>=' if f.at_least else '<='} {f.goal:.3f}"
        verdict = {True: "ok", False: "MISS", None: ""}[f.holds]
        lines.append(f"{f.case:<12} {f.measure:<9} {value:>7} {goal:>9}  {verdict:<4} {f.note}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point. Status 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.robustness", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--num-threads", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return worker(args.model, args.num_threads)
    names = args.cases.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}: choose from {', '.join(CASES)}")
    before = os.getloadavg()[0]
    findings = [f for name in names for f in CASES[name](args.model, args.rounds)]
    print(table_text(findings))
    write_json(args.json, "robustness", {"facts": facts(before), "findings": [
        {**dataclasses.asdict(f), "holds": f.holds} for f in findings]})
    return 1 if any(f.holds is False for f in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
