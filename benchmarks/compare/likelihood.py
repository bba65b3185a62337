"""`python -m benchmarks.compare.likelihood FILE...`: the likelihood of a text beside llama.cpp's.

The same GGUF files, token ids, windows and scored tokens; protocol: octavo/bench/likelihood.py.
llama.cpp runs in its own interpreter (workers/llama_likelihood.py). With --golden FILE its values
are kept there, by the element type in a file's name: tests/equivalence/test_llama_likelihood.py
holds Octavo to them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.compare.peers import DEFAULT_VENVS, PEERS, WORKERS, python_of
from octavo.bench.likelihood import WINDOW, measure
from octavo.tokenizer.loading import load_tokenizer
from octavo.weights.model_file import open_model
from octavo.worker.worker import load_backend

_TEXT = Path("tests/data/frankenstein_excerpt.txt")
_TIMEOUT_S = 600.0


def main() -> int:
    """Prints a Markdown table, a row as soon as a file is done."""
    args = _arguments()
    python = python_of(PEERS["llama-cpp-python"], DEFAULT_VENVS,
                       {"llama-cpp-python": args.venv} if args.venv else {})
    text = args.text.read_text(encoding="utf-8")
    backend = load_backend("cpu")
    peer: dict[str, dict[str, str | float]] = {}
    print("| file | octavo, nats a token | llama.cpp | difference |\n|---|---|---|---|")
    for path in args.files:
        ours = measure(backend, path, text, kv_dtype=args.kv_cache_dtype, window=args.window,
                       max_windows=args.max_windows, num_threads=args.threads).mean_nll
        theirs = _llama(python, path, _windows(path, text, args), args.threads)
        if theirs is None:
            cells = ("-", "-")
        else:
            mean = float(theirs["mean_nll"])
            cells = (f"{mean:.5f}", f"{100 * (ours / mean - 1):+.2f} %")
            peer[path.name.split(".")[-2]] = theirs
        print(f"| {path.name} | {ours:.5f} | {cells[0]} | {cells[1]} |", flush=True)
    if args.golden:
        _keep(args, peer)
    return 0


def _keep(args: argparse.Namespace, peer: dict[str, dict[str, str | float]]) -> None:
    golden = {
        "made_by": "python -m tools.make_variants DIR --types TYPE...; python -m "
                   f"benchmarks.compare.likelihood DIR/*.gguf --window {args.window} --max-windows "
                   f"{args.max_windows} --golden {args.golden}",
        "peer": "llama-cpp-python",
        "version": sorted({str(found["version"]) for found in peer.values()}),
        "text": str(args.text), "window": args.window, "max_windows": args.max_windows,
        "mean_nll": {name: round(float(found["mean_nll"]), 6) for name, found in peer.items()},
    }  # fmt: skip
    args.golden.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


def _windows(path: Path, text: str, args: argparse.Namespace) -> list[list[int]]:
    with open_model(path) as model:
        token_ids = load_tokenizer(model).encode(text, add_special_tokens=False)
    starts = range(0, len(token_ids) - args.window + 1, args.window)[: args.max_windows]
    return [list(token_ids[start : start + args.window]) for start in starts]


def _llama(python: Path, model: Path, windows: list[list[int]],
           threads: int) -> dict[str, str | float] | None:
    """The peer's mean_nll and version, or None with its last words on standard error."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(windows, file)
        file.flush()
        done = subprocess.run(
            [python, WORKERS / "llama_likelihood.py", model, file.name, str(threads)],
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"{model.name}: llama.cpp: {last}", file=sys.stderr)
        return None
    found: dict[str, str | float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.likelihood")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="GGUF files")
    parser.add_argument("--text", type=Path, default=_TEXT)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--max-windows", type=int, default=2)
    parser.add_argument("--kv-cache-dtype", default="bf16", choices=("bf16", "f32", "int8"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--golden", type=Path, help="JSON file to keep llama.cpp's values in")
    parser.add_argument("--venv", type=Path, help="environment of llama-cpp-python")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
