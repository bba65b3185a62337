"""Requantize a GGUF model (through float32) into other types and a Hugging Face folder.

    python -m tools.make_variants OUTDIR [--types Q4_0 Q8_0 ... hf-bf16] [--model PATH_OR_ALIAS]

For tests and comparisons of weight types: every variant holds the same model. Norms and other
vectors stay F32; a K type falls back to its usual wider stand-in where rows are not whole blocks
of 256. The folder holds bfloat16 weights with the Q and K rows in Hugging Face's order.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import OctavoError
from octavo.weights.convert import FILE_TYPES, TargetTypes, convert_model
from octavo.weights.hub import resolve
from octavo.weights.model_file import ModelFile, open_model
from octavo.weights.quantize import to_bf16
from octavo.weights.safetensors import write_safetensors
from octavo.weights.tensor_names import hf_from_canonical

HF_VARIANT = "hf-bf16"
DEFAULT_TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "F16", "BF16", HF_VARIANT)
HF_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CONTROL, USER_DEFINED = 3, 4  # token_type values


def main(arguments: list[str] | None = None) -> int:
    """Command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outdir", type=Path)
    parser.add_argument(
        "--types", nargs="+", default=DEFAULT_TYPES, choices=[*FILE_TYPES, HF_VARIANT]
    )
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file or an alias")
    options = parser.parse_args(arguments)
    try:
        options.outdir.mkdir(parents=True, exist_ok=True)
        with open_model(resolve(options.model)) as model:
            for variant in options.types:
                start = time.monotonic()
                path = make_variant(model, options.outdir, variant)
                print(f"{path}  ({time.monotonic() - start:.1f} s)")
    except OctavoError as err:
        print(f"make_variants: {err}", file=sys.stderr)
        return 1
    return 0


def make_variant(model: ModelFile, outdir: Path, variant: str) -> Path:
    """Write one variant of an opened GGUF model (a type name or "hf-bf16"); its path."""
    stem = re.sub(r"\.(Q\d_\w+|I?Q\d\w*|B?F16|F32)$", "", model.name)
    if variant == HF_VARIANT:
        folder = outdir / f"{stem}-bf16"
        write_folder(model, folder)
        return folder
    path = outdir / f"{stem}.{variant}.gguf"
    write_requantized(model, path, variant)
    return path


def write_requantized(model: ModelFile, path: Path, quant: str) -> None:
    """The same GGUF model with its matrices in `quant`; every metadata value is copied."""
    assert model.format == "gguf"
    convert_model(model, path, TargetTypes(matrices=quant), overwrite=True)


def write_folder(model: ModelFile, folder: Path) -> None:
    """The same model as a Hugging Face folder with bfloat16 weights and its tokenizer."""
    # Imported here so that the GGUF variants need no tokenizer.
    from octavo.tokenizer.gguf_tokenizer import build_from_gguf

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, info in model.tensors.items():
        values = neox_rows(model, name, model.f32(name))
        tensors[hf_from_canonical(name)] = ("BF16", info.shape, to_bf16(values))
    write_safetensors(folder / "model.safetensors", tensors)
    tokens = special_tokens(model.metadata)
    _write_json(folder / "config.json", hf_config(model, tokens))
    _write_json(folder / "generation_config.json", _ids(model, tokens))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(model, tokens))
    build_from_gguf(model.metadata).save(str(folder / "tokenizer.json"))


def neox_rows(model: ModelFile, name: str, values: np.ndarray) -> np.ndarray:
    """Q and K rows with a rotated pair's halves half a head apart, as Hugging Face keeps them.

    An interleaved file has component i of the first half in row 2i of its head, of the second half
    in row 2i + 1. Other tensors, and files that are not interleaved, come back as they are.
    """
    config = model.config
    if config.rope.style != "interleaved" or not re.search(r"\.[qk]_proj\.(weight|bias)$", name):
        return values
    pairs = values.reshape(-1, config.head_dim // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def hf_config(model: ModelFile, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the folder."""
    config = model.config
    if config.rope.freqs is not None:
        raise OctavoError(f"{model.path}: rope_freqs.weight has no form in config.json")
    scaling = None
    if config.rope.scaling is not None:
        scaling = {"rope_type": config.rope.scaling, "factor": config.rope.factor}
    return {
        "architectures": [HF_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "attention_bias": config.attention_bias,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": float(f"{config.rms_norm_eps:.6g}"),  # f32 in the GGUF, 1e-05 was meant
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        **_ids(model, tokens),
    }


def tokenizer_config(model: ModelFile, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer_config.json of the folder, chat template included."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.max_position_embeddings,
        "add_bos_token": bool(model.metadata.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(token_id): {
                "content": text, "special": special, "lstrip": False, "rstrip": False,
                "normalized": False, "single_word": False,
            }
            for token_id, (text, special) in tokens["added"].items()
        },
        **{f"{role}_token": text for role, (_, text) in tokens["roles"].items()},
        "chat_template": model.metadata.get("tokenizer.chat_template"),
    }  # fmt: skip


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary's added tokens (id -> text, special) and named ones (role -> id, text)."""
    texts = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    added = {
        token_id: (texts[token_id], kind == CONTROL)
        for token_id, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    }
    roles = {}
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            roles[role] = (token_id, texts[token_id])
    return {"added": added, "roles": roles}


def _ids(model: ModelFile, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Token ids as both config files state them. All end ids, as a GGUF reader would stop at."""
    ends = list(model.config.eos_token_ids)
    ids = {f"{role}_token_id": tokens["roles"].get(role, (None,))[0] for role in ("bos", "pad")}
    return ids | {"eos_token_id": ends[0] if len(ends) == 1 else ends}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
