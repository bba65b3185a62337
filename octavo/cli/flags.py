"""Flags that several subcommands share, with vLLM's names, and their values with units.

argparse only: nothing of the engine is imported until a command runs.
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config_resolve import EngineArgs

Commands = Any  # argparse's subparsers object has no public type

DEFAULT_MODEL = "smollm2-135m"
_NUMBER = re.compile(r"^(\d+(?:\.\d+)?)([kmgt]?)(i?b?)$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# a stem's ending that names the storage type, not the model
_QUANT_SUFFIX = re.compile(r"[.-](?:i?q\d\w*|b?f16|fp16|f32|fp32)$", re.IGNORECASE)


def count(text: str) -> int:
    """A count, as vLLM reads it: 1k is 1000, 1K is 1024."""
    base = 1024 if text[-1:].isupper() else 1000
    return _scaled(text, base, "a count such as 2048, 2k (2000) or 2K (2048)")


def count_or_zero(text: str) -> int:
    """A count where 0 means "no bound"."""
    wanted = "0 (no own bound) or a count such as 256"
    return _scaled(text, 1024 if text[-1:].isupper() else 1000, wanted)


def size(text: str) -> int:
    """Bytes: 512m and 4g are powers of 1024."""
    return _scaled(text, 1024, "a size such as 512m or 4g")


def _scaled(text: str, base: int, wanted: str) -> int:
    found = _NUMBER.match(text.strip())
    if found is None or (found[3] and not found[2] and found[3].lower() != "b"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    value = float(found[1]) * base ** _POWERS[found[2].lower()]
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not whole: give {wanted}")
    return int(value)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """What every command that runs a model takes."""
    group = parser.add_argument_group("engine")
    group.add_argument("--backend", default="auto", choices=("auto", "cpu", "reference"),
                       help="auto: cpu, or reference (NumPy) where nothing was compiled")
    add_quantization_flag(group)
    group.add_argument("--max-model-len", type=count, metavar="N",
                       help="longest prompt and output together, in tokens")
    group.add_argument("--allow-long-max-model-len", action="store_true",
                       help="let --max-model-len go beyond the positions the model was trained "
                       "for: its rotary positions go on, its answers get worse")
    group.add_argument("--kv-cache-dtype", default="auto",
                       choices=("auto", "bf16", "f32", "int8", "bfloat16", "float32"),
                       help="auto: int8")
    group.add_argument("--kv-cache-memory-bytes", type=size, metavar="SIZE",
                       help="memory of the KV cache, such as 512m or 4g (default: up to 4g, a "
                       "quarter of the free memory, or all that can be used)")
    group.add_argument("--num-threads", type=count, metavar="N",
                       help="compute threads (default: physical cores this process may use)")
    group.add_argument("--seed", type=int, metavar="N",
                       help="requests that give none get seeds derived from it, in order "
                            "(default: a random one for each)")


def add_quantization_flag(group: "argparse._ActionsContainer") -> None:
    """For commands that look at weights as they are in memory."""
    group.add_argument("--quantization", choices=("int8", "int4"),
                       help="quantize F32, F16 and BF16 weights while they are loaded")


def add_chat_template_flag(parser: argparse.ArgumentParser) -> None:
    """For commands that render conversations."""
    parser.add_argument("--chat-template", metavar="FILE",
                        help="a Jinja file, instead of the model's own template")


def chat_template_of(args: argparse.Namespace) -> str | None:
    """The path, looked at before anything loads. Raises ConfigError."""
    from octavo.errors import ConfigError

    template: str | None = args.chat_template
    if template is None:
        return None
    path = Path(template)
    try:
        if path.is_dir():
            reason = "is a folder: give a Jinja file"
        elif not path.exists():
            reason = "no such file"
        elif not path.is_file():
            reason = "is a device or a pipe: give a Jinja file"
        elif not path.stat().st_size:
            reason = "is empty: give a Jinja file"
        else:
            return template
    except OSError as error:
        reason = error.strerror or str(error)
    raise ConfigError(f"--chat-template {template[:200]!r}: {reason}")


def add_batch_flags(parser: argparse.ArgumentParser) -> None:
    """How many requests run together."""
    group = parser.add_argument_group("scheduling")
    group.add_argument("--max-num-seqs", type=count, metavar="N",
                       help="most sequences running at once (default 64)")
    group.add_argument("--max-num-batched-tokens", type=count, metavar="N",
                       help="most tokens of one step (default 512)")
    group.add_argument("--max-num-waiting", "--max-waiting", type=count, metavar="N", default=4096,
                       help="most requests waiting; beyond it they get 429 (default %(default)s)")
    group.add_argument("--long-prefill-token-threshold", type=count_or_zero, metavar="N", default=0,
                       help="most prompt tokens of one request in a step (default: no own bound)")
    group.add_argument("--max-prefill-beside-decodes", type=count_or_zero, metavar="N",
                       default=256, help="most prompt tokens in a step in which others generate, "
                       "so that streams do not stutter; 0: no bound (default %(default)s)")
    group.add_argument("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs",
                       help="order of waiting requests (default %(default)s)")
    group.add_argument("--block-size", type=count, metavar="N", default=16,
                       help="tokens of a KV block, a multiple of 16 (default %(default)s)")
    group.add_argument("--enable-prefix-caching", default=True,
                       action=argparse.BooleanOptionalAction,
                       help="share KV of equal prompt beginnings")
    group.add_argument("--enable-chunked-prefill", default=True,
                       action=argparse.BooleanOptionalAction,
                       help="split long prompts over steps")
    group.add_argument("--jump-forward", default=True, action=argparse.BooleanOptionalAction,
                       help="take text that a grammar forces without a step for each token")
    group.add_argument("--async-scheduling", default=False, action=argparse.BooleanOptionalAction,
                       help="schedule the next step while one runs (for machines with free cores)")
    group.add_argument("--merge-shared-prefix", default=True, action=argparse.BooleanOptionalAction,
                       help="read KV blocks that sequences share once for all of them in a step")


def engine_args(args: argparse.Namespace, served_model_name: tuple[str, ...] = ()) -> "EngineArgs":
    """The flags as EngineArgs."""
    from octavo.config_resolve import EngineArgs

    fields: dict[str, Any] = {
        name: getattr(args, name)
        for name in (
            "model", "backend", "quantization", "max_model_len",
            "allow_long_max_model_len", "kv_cache_dtype",
            "kv_cache_memory_bytes", "num_threads", "seed", "max_num_seqs",
            "max_num_batched_tokens", "max_num_waiting",
            "long_prefill_token_threshold", "max_prefill_beside_decodes",
            "scheduling_policy", "block_size",
            "enable_prefix_caching", "enable_chunked_prefill", "jump_forward",
            "async_scheduling", "merge_shared_prefix",
        )
        if hasattr(args, name)
    }
    return EngineArgs(**fields, served_model_name=served_model_name)


def served_names(model: str, stem: str) -> tuple[str, ...]:
    """Names of a model the user gave none for: its file's name without the storage type first,
    then the alias or repo id it was asked for by, then the file's name as it is."""
    from octavo.weights.hub import canonical_alias

    names = [_QUANT_SUFFIX.sub("", stem) or stem]
    alias = canonical_alias(model)
    if alias is not None:
        names.append(alias)
    names.append(stem)
    return tuple(dict.fromkeys(names))
