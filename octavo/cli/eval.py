"""`octavo eval ppl MODEL --text FILE`: how well a model predicts a text."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from octavo.cli.flags import Commands, add_quantization_flag, count


def add_parser(commands: Commands) -> None:
    """Adds the subcommand and its own."""
    parser = commands.add_parser("eval", help="how well a model does: perplexity of a text")
    kinds = parser.add_subparsers(title="evaluations", dest="eval", required=True,
                                  metavar="EVAL")
    ppl = kinds.add_parser(
        "ppl", help="mean negative log-likelihood and perplexity of a text",
        description="The text is cut into windows, each computed from its own beginning; the "
                    "second half of each is scored. Figures compare between runs of the same "
                    "text, window and tokenizer.")
    ppl.set_defaults(run=run)
    ppl.add_argument("model", metavar="MODEL",
                     help="GGUF file, Hugging Face folder, alias or hub repo id")
    ppl.add_argument("--text", required=True, type=Path, metavar="FILE",
                     help="a text file in UTF-8, of at least one window")
    ppl.add_argument("--window", type=count, default=2048, metavar="N",
                     help="tokens of a window (default %(default)s)")
    ppl.add_argument("--max-windows", type=count, metavar="N", help="score only the first N")
    ppl.add_argument("--kv-cache-dtype", default="auto",
                     choices=("auto", "bf16", "f32", "int8", "bfloat16", "float32"),
                     help="auto: int8")
    ppl.add_argument("--backend", default="auto", choices=("auto", "cpu", "reference"),
                     help="auto: cpu, or reference (NumPy) where nothing was compiled")
    add_quantization_flag(ppl)
    ppl.add_argument("--num-threads", type=count, metavar="N",
                     help="compute threads (default: physical cores this process may use)")
    ppl.add_argument("--json", nargs="?", const="-", metavar="FILE",
                     help="the result as JSON, into FILE or on standard output")


def run(args: argparse.Namespace) -> int:
    """Prints one line, or JSON."""
    from octavo.bench.likelihood import BLOCK_SIZE, measure
    from octavo.config_resolve import EngineArgs
    from octavo.engine.factory import resolve_args
    from octavo.worker.worker import load_backend

    text = _read(args.text)
    blocks = -(-args.window // BLOCK_SIZE)
    config = resolve_args(EngineArgs(
        model=args.model, backend=args.backend, kv_cache_dtype=args.kv_cache_dtype,
        quantization=args.quantization, num_threads=args.num_threads,
        num_blocks=blocks, block_size=BLOCK_SIZE, max_num_seqs=1,
    )).config
    started = time.perf_counter()
    result = measure(
        load_backend(config.model.backend), Path(config.model.path), text,
        kv_dtype=config.cache.dtype, quantization=config.model.quantization,
        window=args.window, max_windows=args.max_windows, num_threads=config.model.num_threads,
        on_window=_show if sys.stderr.isatty() else None)
    facts: dict[str, Any] = {
        "model": config.model.path, "text": str(args.text), "window": args.window,
        "num_windows": result.num_windows, "num_scored": result.num_scored,
        "mean_nll": result.mean_nll, "standard_error": result.standard_error,
        "perplexity": result.perplexity, "backend": config.model.backend,
        "kv_cache_dtype": config.cache.dtype, "quantization": config.model.quantization,
        "seconds": time.perf_counter() - started,
    }
    if args.json is not None:
        written = json.dumps(facts, indent=2)
        if args.json == "-":
            print(written)
            return 0
        Path(args.json).write_text(written + "\n", encoding="utf-8")
    print(f"perplexity {result.perplexity:.4f}, {result.mean_nll:.5f} nats a token "
          f"(standard error {result.standard_error:.5f}) over {result.num_scored} tokens in "
          f"{result.num_windows} windows of {args.window}; {config.model.backend}, "
          f"weights {config.model.quantization or 'as in the file'}, KV "
          f"{config.cache.dtype}, {facts['seconds']:.1f} s")
    return 0


def _read(path: Path) -> str:
    from octavo.errors import ConfigError

    if path.is_dir():
        raise ConfigError(f"--text {str(path)!r}: is a folder; give a text file")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--text {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--text {str(path)!r}: is not UTF-8 ({error.reason} at byte "
                          f"{error.start})") from None


def _show(done: int, total: int) -> None:
    print(f"\rwindow {done} of {total}", end="\n" if done == total else "", file=sys.stderr,
          flush=True)
