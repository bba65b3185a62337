"""`python -m benchmarks.compare.likelihood FILE...`: the likelihood of a text beside llama.cpp's.

The same GGUF files, token ids, windows and scored tokens; protocol: octavo/bench/likelihood.py.
llama.cpp runs in its own interpreter (workers/llama_likelihood.py).
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
    print("| file | octavo, nats a token | llama.cpp | difference |\n|---|---|---|---|")
    for path in args.files:
        ours = measure(backend, path, text, kv_dtype=args.kv_cache_dtype, window=args.window,
                       max_windows=args.max_windows, num_threads=args.threads).mean_nll
        theirs = _llama(python, path, _windows(path, text, args), args.threads)
        cells = ("-", "-") if theirs is None else (
            f"{theirs:.5f}", f"{100 * (ours / theirs - 1):+.2f} %")
        print(f"| {path.name} | {ours:.5f} | {cells[0]} | {cells[1]} |", flush=True)
    return 0


def _windows(path: Path, text: str, args: argparse.Namespace) -> list[list[int]]:
    with open_model(path) as model:
        token_ids = load_tokenizer(model).encode(text, add_special_tokens=False)
    starts = range(0, len(token_ids) - args.window + 1, args.window)[: args.max_windows]
    return [list(token_ids[start : start + args.window]) for start in starts]


def _llama(python: Path, model: Path, windows: list[list[int]], threads: int) -> float | None:
    """The peer's mean, or None with its last words on standard error."""
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
    return float(json.loads(done.stdout.strip().splitlines()[-1])["mean_nll"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.likelihood")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="GGUF files")
    parser.add_argument("--text", type=Path, default=_TEXT)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--max-windows", type=int, default=2)
    parser.add_argument("--kv-cache-dtype", default="bf16", choices=("bf16", "f32", "int8"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--venv", type=Path, help="environment of llama-cpp-python")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
