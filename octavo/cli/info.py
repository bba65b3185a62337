"""`octavo info MODEL`: what a model file holds, and how it is kept in memory."""

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from octavo.cli.flags import Commands, add_quantization_flag

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.config import KVCacheDtype
    from octavo.weights.model_config import ModelConfig, RopeConfig
    from octavo.weights.model_file import ModelFile

_KV_DTYPES: tuple["KVCacheDtype", ...] = ("bf16", "int8", "f32")

_PIPE_WIDTH = 200  # rich would wrap at 80 where it sees no terminal


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("info", help="what a model file holds and how it will be stored")
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id")
    add_quantization_flag(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")


def run(args: argparse.Namespace) -> int:
    """Prints tables. Loads nothing into memory."""
    from rich.console import Console

    from octavo.weights.hub import resolve
    from octavo.weights.model_file import open_model

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    with open_model(resolve(args.model)) as model_file:
        console.print(_facts(model_file))
        console.print(_storage(model_file, args.quantization))
        if args.tensors:
            console.print(_tensors(model_file))
    return 0


def _facts(model_file: "ModelFile") -> "Table":
    from octavo.kvcache.spec import KVCacheSpec

    config = model_file.config
    num_weights = sum(_num_elements(t.shape) for t in model_file.tensors.values())
    table = _table("", "")
    for name, value in (
        ("model", model_file.name),
        ("file", str(model_file.path)),
        ("format", model_file.format),
        *([("quantization", model_file.quantization)] if model_file.quantization else []),
        ("architecture", config.architecture),
        ("parameters", f"{num_weights / 1e6:,.1f} M"),
        ("weights in the file", _mib(model_file.nbytes)),
        ("context", f"{config.max_position_embeddings} tokens"),
        ("layers", str(config.num_layers)),
        ("hidden / intermediate", f"{config.hidden_size} / {config.intermediate_size}"),
        ("heads / KV heads", f"{config.num_heads} / {config.num_kv_heads} of {config.head_dim}"),
        ("vocabulary", str(config.vocab_size)),
        ("rope", _rope(config.rope)),
        ("sliding window", _or_none(config.sliding_window)),
        ("output matrix", "tied to the embeddings" if config.tie_word_embeddings else "own"),
        ("generation defaults", _defaults(config)),
        ("chat template", _template(model_file)),
    ):
        table.add_row(name, value)
    for dtype in _KV_DTYPES:
        spec = KVCacheSpec(num_layers=config.num_layers, num_kv_heads=config.num_kv_heads,
                           head_dim=config.head_dim, block_size=16, dtype=dtype)
        per_token = spec.bytes_per_block / spec.block_size
        table.add_row(f"KV cache {dtype}", f"{per_token:,.0f} bytes a token")
    return table


def _storage(model_file: "ModelFile", quantization: str | None) -> "Table":
    """How many tensors of each type there are, and what the native backend makes of them."""
    from octavo.backends.cpu.storage import storage_of
    from octavo.weights.load_quantize import QuantizedWeights, check_quantizable

    view = None
    if quantization is not None:
        check_quantizable(model_file, quantization)
        view = QuantizedWeights(model_file, quantization)
    groups: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for tensor in model_file.tensors.values():
        layout = "f32"
        if len(tensor.shape) == 2:
            changed = view is not None and view.is_changed(tensor.name)
            quant = view.quant_of(tensor.name) if view is not None else tensor.quant
            storage = storage_of(quant, tensor.shape[-1])
            layout = f"{storage.layout} (converted)" if storage.via_f32 else storage.layout
            layout += " (quantized at load)" if changed else ""
        key = (tensor.quant, layout)
        groups[key] += 1
        nbytes[key] += tensor.nbytes
    table = _table("type in the file", "tensors", "size in the file", "in memory, backend cpu",
                   "backend reference")
    for (quant, layout), number in groups.most_common():
        table.add_row(quant, str(number), _mib(nbytes[quant, layout]), layout, "f32")
    return table


def _tensors(model_file: "ModelFile") -> "Table":
    table = _table("tensor", "shape", "type", "bytes")
    for tensor in model_file.tensors.values():
        shape = " x ".join(map(str, tensor.shape))
        table.add_row(tensor.name, shape, tensor.quant, f"{tensor.nbytes:,}")
    return table


def _template(model_file: "ModelFile") -> str:
    from octavo.tokenizer.loading import load_chat_template, load_tokenizer

    tokenizer = load_tokenizer(model_file)
    template = load_chat_template(model_file, tokenizer)
    if template.is_missing or template.source is None:
        return "none that works: completions only, or give --chat-template FILE"
    return f"yes, {len(template.source)} characters"


def _table(*columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, show_header=any(columns), pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _num_elements(shape: tuple[int, ...]) -> int:
    number = 1
    for length in shape:
        number *= length
    return number


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def _rope(rope: "RopeConfig") -> str:
    scaling = "" if rope.scaling is None else f", {rope.scaling} scaling by {rope.factor:g}"
    return f"theta {rope.theta:g}, {rope.style}{scaling}"


def _defaults(config: "ModelConfig") -> str:
    found = config.generation_defaults
    return ", ".join(f"{k} {v}" for k, v in found.items()) if found else "none"
