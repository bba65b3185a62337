"""Which vocabularies can fill a gap, and the prompts for it."""

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.errors import ModelLoadError
from octavo.testing.byte_tokenizer import BOS_ID, byte_tokenizer, raw_byte_tokenizer
from octavo.tokenizer.fim import FimTokens
from octavo.tokenizer.loading import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer


def with_tokens(*names: str, special: bool = True, **options: Any) -> Tokenizer:
    inner = raw_byte_tokenizer()
    (inner.add_special_tokens if special else inner.add_tokens)(list(names))
    return Tokenizer(inner, **options)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("names", [
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
])
def test_known_names(names: tuple[str, ...], special: bool) -> None:
    tokenizer = with_tokens(*names, special=special)
    ids = [tokenizer.token_to_id(name) for name in names]
    assert tokenizer.fim == FimTokens(*ids)  # type: ignore[arg-type]


def test_none_or_some_of_the_names() -> None:
    assert byte_tokenizer().fim is None
    assert with_tokens("<fim_prefix>", "<fim_suffix>").fim is None
    assert with_tokens("<fim_prefix>", "<|fim_suffix|>", "<fim_middle>").fim is None


def test_ids_of_the_file_come_first() -> None:
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    assert with_tokens(*names, fim_ids=(7, 8, 9)).fim == FimTokens(7, 8, 9)
    tokenizer = with_tokens(*names, fim_ids=(7, None, 9))
    assert tokenizer.fim is not None and tokenizer.fim.before > 255


def test_prompt_and_ends() -> None:
    tokenizer = with_tokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>",
                            bos_token_id=BOS_ID, prefix_ids=(BOS_ID,), suffix_ids=(5,))
    first = 260
    assert tokenizer.fim == FimTokens(first, first + 1, first + 2, end_ids=(first + 3,))
    a, b = list(b"ab"), list(b"c")
    gap = [first, *a, first + 1, *b, first + 2]
    assert tokenizer.encode_gap(a, b) == [BOS_ID, *gap]
    assert tokenizer.encode_gap(a, b, add_special_tokens=False) == gap


@pytest.mark.parametrize("keys", [("fim_pre", "fim_suf", "fim_mid"),
                                  ("prefix", "suffix", "middle")])
def test_names_of_gguf_files(gguf_file: SimpleNamespace, gguf_metadata: dict[str, Any],
                             keys: tuple[str, ...]) -> None:
    assert load_tokenizer(gguf_file).fim is None
    named = {f"tokenizer.ggml.{key}_token_id": 11 + i for i, key in enumerate(keys)}
    changed = SimpleNamespace(**vars(gguf_file) | {"metadata": gguf_metadata | named})
    fim = load_tokenizer(changed).fim
    assert fim is not None and (fim.before, fim.after, fim.middle) == (11, 12, 13)


def test_a_gguf_id_outside_of_the_vocabulary(gguf_file: SimpleNamespace,
                                             gguf_metadata: dict[str, Any]) -> None:
    named = {"tokenizer.ggml.fim_pre_token_id": 10**6}
    changed = SimpleNamespace(**vars(gguf_file) | {"metadata": gguf_metadata | named})
    with pytest.raises(ModelLoadError, match="fim_pre_token_id"):
        load_tokenizer(changed)
