"""Mean next-token negative log-likelihood of a model over a text (octavo/testing/likelihood.py).

    python tools/likelihood.py MODEL [--backend cpu|reference] [--kv-cache-dtype f32|bf16|int8]
                               [--text FILE] [--windows N] [--threads N]

MODEL is a GGUF file or a Hugging Face folder. Prints one line a KV dtype.
"""

import argparse
import time
from pathlib import Path

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.backend import ReferenceBackend
from octavo.backends.seam import Backend, KVOptions
from octavo.models.registry import record
from octavo.testing.likelihood import WINDOW, Likelihood, likelihood, likelihood_limits
from octavo.tokenizer.loading import load_tokenizer
from octavo.weights.model_file import open_model

TEXT = Path(__file__).resolve().parent.parent / "tests" / "data" / "frankenstein_excerpt.txt"
BLOCK_SIZE = 16


def measure(
    backend: Backend,
    model_path: Path,
    *,
    kv_dtype: str,
    text: Path = TEXT,
    max_windows: int | None = None,
    num_threads: int = 2,
) -> Likelihood:
    """The likelihood of `text` under the model at `model_path`."""
    with open_model(model_path) as file:
        token_ids = load_tokenizer(file).encode(text.read_text("utf-8"), add_special_tokens=False)
        graph = record(file.config, file.tensors.keys())
        limits = likelihood_limits(graph.vocab_size, BLOCK_SIZE)
        kv = KVOptions(block_size=BLOCK_SIZE, num_blocks=WINDOW // BLOCK_SIZE, dtype=kv_dtype)
        model = backend.load(graph, file, kv=kv, limits=limits, num_threads=num_threads)
    try:
        return likelihood(
            model, token_ids, limits=limits, block_size=BLOCK_SIZE, max_windows=max_windows
        )
    finally:
        model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Mean next-token negative log-likelihood.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", choices=("cpu", "reference"), default="cpu")
    dtypes = ("f32", "bf16", "int8")
    parser.add_argument("--kv-cache-dtype", choices=dtypes, nargs="+", default=dtypes)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--windows", type=int, default=None, help="only that many windows")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    backend: Backend = CpuBackend() if args.backend == "cpu" else ReferenceBackend()
    for dtype in args.kv_cache_dtype:
        started = time.perf_counter()
        result = measure(
            backend, args.model, kv_dtype=dtype, text=args.text, max_windows=args.windows,
            num_threads=args.threads,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        print(
            f"{args.backend} {dtype}: {result.mean_nll:.5f} nats a token over {result.num_scored} "
            f"tokens in {result.num_windows} windows ({seconds:.1f} s)"
        )


if __name__ == "__main__":
    main()
