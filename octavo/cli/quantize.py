"""`octavo quantize IN OUT --type T`: a model written as a GGUF file in another element type."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.flags import Commands

if TYPE_CHECKING:
    from octavo.weights.convert import Progress
    from octavo.weights.model_config import ModelConfig

# The types octavo/weights/quantize.py writes; spelled out so that --help needs no NumPy.
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "quantize", help="write a model as a GGUF file in another element type",
        description="Matrices get the type; a K type becomes its wider stand-in where rows are no "
                    "multiple of 256, and vectors stay F32.")
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="IN",
                        help="GGUF file, Hugging Face folder, alias or hub repo id")
    parser.add_argument("out", metavar="OUT", type=Path, help="the GGUF file to write")
    parser.add_argument("--type", required=True, type=_type, metavar="T",
                        help="one of " + ", ".join(TYPES))
    parser.add_argument("--token-embedding-type", type=_type, metavar="T",
                        help="for the embeddings (default: as --type)")
    parser.add_argument("--output-tensor-type", type=_type, metavar="T",
                        help="for an output matrix that is not the embeddings (default: as --type)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Writes the file and prints its path, types and size."""
    from octavo.tokenizer.gguf_export import gguf_vocabulary
    from octavo.weights.convert import TargetTypes, convert_model
    from octavo.weights.hub import resolve
    from octavo.weights.model_file import open_model

    types = TargetTypes(matrices=args.type, token_embedding=args.token_embedding_type,
                        output=args.output_tensor_type)
    with open_model(resolve(args.model, progress=not args.quiet)) as model:
        folder = model.format != "gguf"
        vocabulary = gguf_vocabulary(model, vocab_size=model.config.vocab_size) if folder else None
        divisors = _rope_divisors(model.config) if folder else None
        with _progress_bar(args.out.name, not args.quiet) as progress:
            convert_model(model, args.out, types, vocabulary=vocabulary, rope_divisors=divisors,
                          overwrite=args.force, progress=progress)
        before = model.nbytes
        advice = folder and bool(model.config.generation_defaults)
    with open_model(args.out) as made:
        used = sorted({t.quant for t in made.tensors.values() if len(t.shape) == 2})
        print(f"{args.out}: {', '.join(used)}, weights {before / 2**20:,.1f} -> "
              f"{made.nbytes / 2**20:,.1f} MiB")
    if advice:
        print("the sampling advice of generation_config.json is not in it: GGUF has no place for "
              "it", file=sys.stderr)
    return 0


def _type(text: str) -> str:
    if text.upper() not in TYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(TYPES)}")
    return text.upper()


def _rope_divisors(config: "ModelConfig") -> tuple[float, ...] | None:
    """Llama 3's scaling as divisors of the unscaled frequencies: the form GGUF has for it."""
    import dataclasses

    from octavo.models.rope import rope_spec

    if config.rope.scaling != "llama3":
        return None
    plain = rope_spec(dataclasses.replace(config.rope, scaling=None)).inv_freq
    return tuple(p / s for p, s in zip(plain, rope_spec(config.rope).inv_freq, strict=True))


@contextmanager
def _progress_bar(label: str, show: bool) -> Iterator["Progress | None"]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[tensor]}"))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, tensor="")
        yield lambda done, total, name: bar.update(task, completed=done, total=total, tensor=name)
        bar.update(task, completed=bar.tasks[0].total, tensor="")
