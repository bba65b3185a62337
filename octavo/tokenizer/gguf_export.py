"""The vocabulary of a Hugging Face folder as the `tokenizer.*` keys of a GGUF file.

The way back of `gguf_tokenizer.py`, with its limits: byte-level BPE whose pre-tokenizer has a name
in GGUF. A tokenizer that would read text differently from the file is refused, not approximated.
"""

import json
from typing import Any

import tokenizers

from octavo.errors import UnsupportedModelError
from octavo.tokenizer.gguf_tokenizer import (
    TOKEN_TYPE_CONTROL,
    TOKEN_TYPE_USER_DEFINED,
    ignores_merges,
    normalizer_of,
    pre_tokenizer_names,
    pre_tokenizer_of,
)
from octavo.tokenizer.loading import END_TOKENS, ModelFile, load_tokenizer, template_sources
from octavo.tokenizer.tokenizer import Tokenizer

_NORMAL, _UNUSED = 1, 5  # token_type values
_KEY = "tokenizer.ggml."


def gguf_vocabulary(model_file: ModelFile, *, vocab_size: int) -> dict[str, Any]:
    """Keys and plain values: tokens, merges, types, special ids and the chat templates.

    vocab_size: rows of the embeddings; ids beyond the tokenizer's get a placeholder.
    Raises UnsupportedModelError where GGUF cannot say what the tokenizer does.
    """
    tokenizer = load_tokenizer(model_file)
    content = json.loads(tokenizer.to_json())
    model = content["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or model.get("end_of_word_suffix"):
        raise _unsupported("it is no byte-level BPE")
    types, tokens = _tokens(content, vocab_size)
    return {
        f"{_KEY}model": "gpt2",
        f"{_KEY}pre": _pre_name(content),
        f"{_KEY}tokens": tokens,
        f"{_KEY}token_type": types,
        f"{_KEY}merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        **_special_ids(tokenizer, model_file, tokens),
        **{
            "tokenizer.chat_template" + ("" if name == "default" else f".{name}"): text
            for name, text in template_sources(model_file).items()
        },
    }


def _tokens(content: dict[str, Any], vocab_size: int) -> tuple[list[int], list[str]]:
    """token_type and text of every id."""
    types, tokens = [_UNUSED] * vocab_size, [f"[PAD{i}]" for i in range(vocab_size)]
    entries = [(i, text, _NORMAL) for text, i in content["model"]["vocab"].items()]
    for token in content["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise _unsupported(f"its token {token['content']!r} takes spaces or word bounds along")
        kind = TOKEN_TYPE_CONTROL if token["special"] else TOKEN_TYPE_USER_DEFINED
        entries.append((token["id"], token["content"], kind))
    for token_id, text, kind in entries:
        if not 0 <= token_id < vocab_size:
            raise _unsupported(f"token id {token_id} has no row in the model's {vocab_size}")
        types[token_id], tokens[token_id] = kind, text
    return types, tokens


def _pre_name(content: dict[str, Any]) -> str:
    """The first name in GGUF of a pre-tokenizer that is the same, part by part."""
    wanted = _shape(content["pre_tokenizer"]), _shape(content["normalizer"])
    ignore = bool(content["model"].get("ignore_merges"))
    for name in pre_tokenizer_names():
        probe = tokenizers.Tokenizer(tokenizers.models.BPE())
        probe.pre_tokenizer = pre_tokenizer_of(name)
        normalizer = normalizer_of(name)
        if normalizer is not None:
            probe.normalizer = normalizer
        made = json.loads(probe.to_str())
        same = (_shape(made["pre_tokenizer"]), _shape(made["normalizer"])) == wanted
        if same and ignores_merges(name) == ignore:
            return name
    raise _unsupported("GGUF has no name that Octavo knows for its pre-tokenizer")


def _shape(part: Any) -> Any:
    """A part of tokenizer.json without what changes offsets only; sequences of one unwrapped."""
    if not isinstance(part, dict):
        return part
    for key in ("pretokenizers", "normalizers"):
        if part.get("type") == "Sequence" and key in part:
            items = [_shape(item) for item in part[key]]
            return items[0] if len(items) == 1 else items
    return {key: value for key, value in part.items() if key != "trim_offsets"}


def _special_ids(
    tokenizer: Tokenizer, model_file: ModelFile, tokens: list[str]
) -> dict[str, Any]:
    ends = list(dict.fromkeys((*tokenizer.eos_token_ids, *model_file.config.eos_token_ids)))
    # A reader finds the ones with a known spelling by itself; GGUF has three keys for others.
    named = ends[:1] + [i for i in ends[1:] if tokens[i] not in END_TOKENS]
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    if len(named) > len(keys):
        raise _unsupported(f"it has {len(named)} end-of-sequence ids, GGUF takes {len(keys)}")
    found: dict[str, Any] = {_KEY + key: i for key, i in zip(keys, named, strict=False)}
    bos = tokenizer.bos_token_id
    if bos is not None:
        found[f"{_KEY}bos_token_id"] = bos
    bare, full = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    add_bos = full[:1] == [bos] and full[1 : 1 + len(bare)] == bare
    add_eos = bool(named) and full[-1:] == named[:1] and len(full) == add_bos + len(bare) + 1
    if len(full) != add_bos + len(bare) + add_eos:
        raise _unsupported("it puts more around a text than BOS and EOS")
    return found | {f"{_KEY}add_bos_token": add_bos, f"{_KEY}add_eos_token": add_eos}


def _unsupported(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"the tokenizer cannot be put into a GGUF file: {reason}")
