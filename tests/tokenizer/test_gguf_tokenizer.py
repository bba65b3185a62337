"""build_from_gguf: the ids of an independent implementation, and refusals by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.tokenizer.gguf_tokenizer import adds_bos, build_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer

# Ids of another GGUF runtime for the default model, control tokens in the text not parsed.
GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "smollm_ids.json").read_text(encoding="utf-8")
)
# "Hello" can be merged; every byte used below is there.
CHARS = [
    *"Helo123456 Ġwrd'tsLĊĉ.,!-中æä¸ŃÂł",
    "He",
    "ll",
    "Hell",
    "Hello",
    "12",
    "123",
    "<x>",
    "<u>",
]


def small(pre: str | None, **changes: Any) -> dict[str, Any]:
    tokens = list(dict.fromkeys(CHARS))
    types = [3 if token == "<x>" else 4 if token == "<u>" else 1 for token in tokens]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["H e", "l l", "He ll", "1 2", "12 3"],
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    metadata.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not ...}


@pytest.mark.parametrize("row", range(len(GOLDEN)))
def test_same_ids_as_the_golden(row: int, smollm: Tokenizer) -> None:
    assert smollm.encode(GOLDEN[row]["text"]) == GOLDEN[row]["ids"]


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "12 34", ["1", "2", "Ġ", "3", "4"]),
        ("starcoder", "12 34", ["1", "2", "Ġ", "3", "4"]),
        ("gpt-2", "123456", ["123", "4", "5", "6"]),
        ("gpt-2", "12 34", ["12", "Ġ", "3", "4"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("llama-bpe", "41234", ["4", "12", "3", "4"]),  # groups of three from the left
        ("deepseek-v3", "41234", ["4", "12", "3", "4"]),
        ("tekken", "123", ["1", "2", "3"]),
        (None, "1234", ["123", "4"]),  # no `pre` key: groups of three digits
        ("default", "4123", ["4", "12", "3"]),
    ],
)
def test_digits_by_pre_tokenizer(pre: str | None, text: str, tokens: list[str]) -> None:
    assert build_from_gguf(small(pre)).encode(text).tokens == tokens


def test_a_whole_word_in_the_vocabulary_needs_no_merge_where_merges_are_ignored() -> None:
    assert build_from_gguf(small("llama-bpe")).encode("Hello").tokens == ["Hello"]
    assert build_from_gguf(small("qwen2")).encode("Hello").tokens == ["Hell", "o"]


def test_qwen2_normalizes_to_form_c() -> None:
    metadata = small("qwen2", tokens=["Ã", "©", "e", "Ì", "ģ"], token_type=[1] * 5, merges=[])
    assert build_from_gguf(metadata).encode("e\u0301").tokens == ["Ã", "©"]
    metadata["tokenizer.ggml.pre"] = "gpt-2"
    assert build_from_gguf(metadata).encode("e\u0301").tokens == ["e", "Ì", "ģ"]


def test_token_types_become_added_tokens() -> None:
    added = build_from_gguf(small("gpt-2")).get_added_tokens_decoder()
    assert {token.content: token.special for token in added.values()} == {"<x>": True, "<u>": False}


@pytest.mark.parametrize("kind", ["llama", "bert", "t5", "rwkv", "none", None])
def test_other_kinds_are_refused_by_name(kind: str | None) -> None:
    with pytest.raises(UnsupportedModelError, match=f"tokenizer.ggml.model = {kind!r}"):
        build_from_gguf(small("gpt-2", model=... if kind is None else kind))


def test_unknown_pre_tokenizers_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'from-the-future'"):
        build_from_gguf(small("from-the-future"))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"tokens": ...}, "tokens is missing"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": "abc"}, "tokens is missing or not an array"),
        ({"tokens": [1, 2]}, "tokens holds int"),
        ({"merges": ...}, "merges is missing"),
        ({"merges": ["Q Z"]}, "merges does not fit"),
        ({"merges": ["H"]}, "merges does not fit"),
        ({"token_type": ...}, "token_type is missing"),
        ({"token_type": [1, 2]}, "token_type has 2 entries"),
    ],
)
def test_broken_metadata_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ModelLoadError, match=error):
        build_from_gguf(small("gpt-2", **changes))


def test_bos_by_key_or_by_family() -> None:
    assert adds_bos(small("llama-bpe"))
    assert not adds_bos(small("llama-bpe", add_bos_token=False))
    assert not adds_bos(small("qwen2"))
    assert adds_bos(small("qwen2", add_bos_token=True))
