"""`python -m benchmarks.compare`: see README.md beside this file."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.compare.cases import DEFAULT_TESTS, GROUPS
from benchmarks.compare.peers import (
    DEFAULT_PEERS,
    DEFAULT_VENVS,
    PEERS,
    PLOT,
    WORKERS,
    Entrant,
    find_entrant,
    install,
    octavo_entrant,
    python_of,
)
from benchmarks.compare.report import chart_svg, outcome_json, table_text
from benchmarks.compare.runner import Outcome, run_group


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parse(argv)
    if args.command == "install":
        return install(args.peer, args.venvs)
    unknown = [name for name in args.tests if name not in GROUPS]
    if unknown:
        print(f"unknown test {unknown[0]}: choose from {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    outcome = Outcome(load_before=os.getloadavg()[0])
    entrants = _entrants(args, outcome)
    models = [_model_path(name) for name in args.model]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 0
    try:
        for name in args.tests:
            run_group(GROUPS[name], entrants, models, threads=args.threads, outcome=outcome,
                      repetitions=args.repetitions, progress=_progress)
    except KeyboardInterrupt:  # what was measured so far is worth minutes
        outcome.missing.append("the run was interrupted: later cases are missing")
        status = 130
    _progress("")
    print(table_text(outcome))
    _write(args, outcome)
    return status


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--model", action="append", metavar="FILE",
                        help="a model all engines read; may be repeated: each is measured")
    parser.add_argument("--peers", type=_names, default=list(DEFAULT_PEERS),
                        metavar="NAME,NAME,...",
                        help=f"{', '.join(PEERS)}, or url=URL[#MODEL] "
                        f"(default {','.join(DEFAULT_PEERS)})")
    parser.add_argument("--tests", type=_names, default=list(DEFAULT_TESTS), metavar="NAME,...",
                        help=f"of {', '.join(GROUPS)} (default {','.join(DEFAULT_TESTS)})")
    parser.add_argument("-r", "--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, metavar="N",
                        default=len(os.sched_getaffinity(0)), help="of every engine")
    parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS, metavar="DIR",
                        help="where the peers' environments are")
    parser.add_argument("--venv", action="append", default=[], metavar="PEER=DIR",
                        help="the environment of one peer, elsewhere")
    parser.add_argument("--out", type=Path, default=Path("compare.json"), metavar="FILE",
                        help="results; a chart goes beside them (default %(default)s)")
    commands = parser.add_subparsers(dest="command", metavar="install PEER")
    installer = commands.add_parser("install", help="make the environment of a peer")
    installer.add_argument("peer", help=f"{', '.join((*PEERS, PLOT.name))}")
    installer.add_argument("--venvs", type=Path, default=DEFAULT_VENVS, metavar="DIR")
    args = parser.parse_args(argv)
    if args.command is None and not args.model:
        parser.error("give at least one --model FILE")
    if args.command is None and args.repetitions < 1:
        parser.error("-r must be at least 1")
    return args


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _overrides(args: argparse.Namespace) -> dict[str, Path]:
    return {name: Path(folder) for name, _, folder in
            (item.partition("=") for item in args.venv)}


def _entrants(args: argparse.Namespace, outcome: Outcome) -> list[Entrant]:
    found = [octavo_entrant()]
    for name in args.peers:
        entrant = find_entrant(name, args.venvs, _overrides(args))
        if isinstance(entrant, str):
            outcome.missing.append(entrant)
        else:
            found.append(entrant)
    return found


def _model_path(name: str) -> str:
    """Peers take a path only, so an alias becomes the file it names."""
    from octavo.weights.hub import resolve

    return str(resolve(name))


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}\r", end="", file=sys.stderr, flush=True)


def _write(args: argparse.Namespace, outcome: Outcome) -> None:
    from octavo.bench.machine_probe import cpu_model

    data = outcome_json(outcome, threads=args.threads, cpu=cpu_model())
    data["measured_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    args.out.write_text(json.dumps(data, indent=1) + "\n")
    args.out.with_suffix(".svg").write_text(chart_svg(outcome))
    written = [args.out, args.out.with_suffix(".svg")]
    python = python_of(PLOT, args.venvs, _overrides(args))
    if python.exists():
        chart = args.out.with_suffix(".png")
        subprocess.run([python, WORKERS / PLOT.worker, args.out, chart], check=True)
        written.append(chart)
    else:
        print("no PNG: run `python -m benchmarks.compare install plot` for one")
    print("written: " + ", ".join(str(path) for path in written))


if __name__ == "__main__":
    sys.exit(main())
