"""A byte-level BPE tokenizer rebuilt from the metadata of a GGUF file.

Knows the `tokenizer.ggml.*` keys and the table of pre-tokenizers. Never opens a file, knows nothing
of chat templates, end tokens or decoding (`tokenizer.py` does).
"""

from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import ModelLoadError, UnsupportedModelError

# tokenizer.ggml.token_type values (GGUF specification).
TOKEN_TYPE_UNKNOWN = 2
TOKEN_TYPE_CONTROL = 3
TOKEN_TYPE_USER_DEFINED = 4

# Kinds of tokenizer a GGUF file may name, other than byte-level BPE ("gpt2").
_OTHER_KINDS = {
    "llama": "SentencePiece BPE",
    "bert": "WordPiece",
    "t5": "SentencePiece unigram",
    "rwkv": "RWKV",
    "plamo2": "PLaMo-2",
    "gemma4": "SentencePiece-style BPE",
    "none": "no tokenizer at all",
    "no_vocab": "no tokenizer at all",
}

# Split patterns, as the tokenizer.json files of these model families state them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK = r"[一-龥぀-ゟ゠-ヿ]+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    """GPT-2's own pattern and the byte alphabet."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _split(*splits: str) -> pre_tokenizers.PreTokenizer:
    """Isolate each pattern in turn, then the byte alphabet."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*map(_isolated, splits), byte_level])


def _isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _digits_gpt2() -> pre_tokenizers.PreTokenizer:
    """Every digit alone, then as GPT-2."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


# tokenizer.ggml.pre -> pre-tokenizer.
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": lambda: _split(_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "phi-2": _gpt2,
    "olmo": _gpt2,
    "mpt": _gpt2,
    "smollm": _digits_gpt2,
    "starcoder": _digits_gpt2,
    "refact": _digits_gpt2,
    "command-r": _digits_gpt2,
    "codeshell": _digits_gpt2,
    "llama-bpe": lambda: _split(_LLAMA3),
    "llama3": lambda: _split(_LLAMA3),
    "llama-v3": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
    "deepseek-r1-qwen": lambda: _split(_QWEN2),
    "stablelm2": lambda: _split(_QWEN2),
    "tekken": lambda: _split(_TEKKEN),
    "deepseek-v3": lambda: _split(r"\p{N}{1,3}", _CJK, _DEEPSEEK3),
}
# A piece that is a vocabulary entry as a whole becomes it at once, whatever the merges say.
_IGNORE_MERGES = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
# Text is put into Unicode normal form C first, as these models' own tokenizers do.
_NFC = frozenset({"qwen2", "deepseek-r1-qwen"})
# These begin every prompt with BOS when the file does not say.
_ADD_BOS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})


def build_from_gguf(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The `tokenizers` object that the metadata describes.

    Ids are positions in `tokenizer.ggml.tokens`. Control and unknown tokens (types 3, 2) become
    special added tokens, user-defined ones (type 4) plain added tokens.

    Raises:
        UnsupportedModelError: another tokenizer kind, or a pre-tokenizer not in the table.
        ModelLoadError: a key is missing or its value makes no sense.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        what = _OTHER_KINDS.get(str(kind), "unknown")
        raise UnsupportedModelError(
            f"tokenizer.ggml.model = {kind!r} ({what}) is not supported in a GGUF file: "
            "only byte-level BPE ('gpt2') is; a Hugging Face folder with tokenizer.json may work"
        )
    pre = pre_name(metadata)
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre = {pre!r} is not a pre-tokenizer Octavo knows (known: {known})"
        )
    tokens = _list(metadata, "tokenizer.ggml.tokens", str)
    merges = _list(metadata, "tokenizer.ggml.merges", str)
    types = _token_types(metadata, len(tokens))

    # Of two tokens with one text the first keeps it, as a search from id 0 would.
    vocab = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1)))
    try:
        # A merge is "left right"; byte-level tokens hold no space, so the first one parts them.
        pairs = [(left, right) for left, _, right in (m.partition(" ") for m in merges)]
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _IGNORE_MERGES)
    except (
        Exception
    ) as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise ModelLoadError(
            f"tokenizer.ggml.merges does not fit the vocabulary: {error}"
        ) from None

    result = tokenizers.Tokenizer(model)
    if pre in _NFC:
        result.normalizer = normalizers.NFC()
    result.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    result.decoder = decoders.ByteLevel()
    _add_tokens(result, tokens, types)
    return result


def pre_name(metadata: Mapping[str, Any]) -> str:
    """The pre-tokenizer's name; files older than the key mean "default"."""
    return str(metadata.get("tokenizer.ggml.pre", "default"))


def pre_tokenizer_names() -> tuple[str, ...]:
    """The names of `tokenizer.ggml.pre` that are known."""
    return tuple(_PRE_TOKENIZERS)


def pre_tokenizer_of(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a known name."""
    return _PRE_TOKENIZERS[name]()


def normalizer_of(name: str) -> normalizers.Normalizer | None:
    """What a known pre-tokenizer's models do to a text first."""
    return normalizers.NFC() if name in _NFC else None


def ignores_merges(name: str) -> bool:
    """Whether a piece that is a vocabulary entry becomes it at once."""
    return name in _IGNORE_MERGES


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a prompt begins with BOS, by the file or by its model family's habit."""
    default = pre_name(metadata) in _ADD_BOS
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _add_tokens(result: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    special = []
    plain = []
    for token, token_type in zip(tokens, types):
        if not token:
            continue
        if token_type in (TOKEN_TYPE_CONTROL, TOKEN_TYPE_UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif token_type == TOKEN_TYPE_USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    result.add_special_tokens(special)
    result.add_tokens(plain)


def _token_types(metadata: Mapping[str, Any], count: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in metadata:
        raise ModelLoadError(
            "tokenizer.ggml.token_type is missing: control tokens cannot be told from text"
        )
    types = _list(metadata, "tokenizer.ggml.token_type", int)
    if len(types) != count:
        raise ModelLoadError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {count} tokens"
        )
    return types


def _list(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """The array at `key` as a list, its first element checked (a GGUF array has one type)."""
    value = metadata.get(key)
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise ModelLoadError(f"{key} is missing or not an array")
    values = value.tolist() if hasattr(value, "tolist") else list(value)
    if values and not isinstance(values[0], kind):
        raise ModelLoadError(f"{key} holds {type(values[0]).__name__}, not {kind.__name__}")
    if not values and key.endswith("tokens"):
        raise ModelLoadError(f"{key} is empty")
    return values
